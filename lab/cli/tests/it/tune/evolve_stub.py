"""Twenty generations of docs/own-kernel/evolve.py by OpenEvolve, with a script in place of the model.

The first kernel does its work twice. Of every five answers of the script one is the planted rewrite, one is faster and
wrong, one reads beyond its tensors, one is no PTX and one only adds a comment. Prints what the best program is. Without OpenEvolve the
answers are evaluated one after another, as it would.
"""

import json
import os
import pathlib
import sys

GENERATIONS = 20


def answers(slow, fast):
    """What the model says, in turns."""
    skips = fast.replace("ex2.approx.ftz.f32 %f13, %f13;", "")
    assert skips != fast
    reads_beyond = fast.replace("mul.wide.u32 %rd7, %r19, 2;", "mul.wide.u32 %rd7, %r19, 4;")
    assert reads_beyond != fast
    return [slow + "// the same\n", skips, reads_beyond, "what a kernel", fast]


class Script:
    """A model as OpenEvolve calls one. Its processes share a count of calls by a file."""

    def __init__(self, _model):
        self.slow, self.fast, self.calls = (pathlib.Path(os.environ[name]) for name in ("SLOW", "FAST", "CALLS"))

    async def generate(self, prompt, **kwargs):
        return await self.generate_with_context("", [{"content": prompt}], **kwargs)

    async def generate_with_context(self, _system, _messages, **_kwargs):
        with self.calls.open("a") as calls:
            calls.write(".")
            calls.flush()
            turn = calls.tell()
        said = answers(self.slow.read_text(), self.fast.read_text())
        return f"```ptx\n{said[turn % len(said)]}\n```"


def evolved(initial, evaluator, folder):
    from openevolve import run_evolution
    from openevolve.config import Config, LLMModelConfig

    config = Config()
    config.max_iterations, config.diff_based_evolution = GENERATIONS, False
    config.checkpoint_interval = GENERATIONS
    config.language, config.file_suffix = "ptx", ".ptx"
    config.evaluator.cascade_evaluation, config.evaluator.parallel_evaluations = False, 1
    config.llm.models = [LLMModelConfig(name="script", init_client=Script, weight=1.0)]
    config.llm.evaluator_models = config.llm.models
    result = run_evolution(str(initial), str(evaluator), config=config, output_dir=folder, cleanup=False)
    programs = [json.loads(path.read_text()) for path in pathlib.Path(folder).rglob("programs/*.json")]
    return result.best_code, result.metrics, [program["metrics"] for program in programs]


def one_by_one(initial, evaluator, folder):
    sys.path.insert(0, str(evaluator.parent))
    from evolve import judge

    seen = []
    said = answers(initial.read_text(), pathlib.Path(os.environ["FAST"]).read_text())
    for number, text in enumerate([initial.read_text(), *(said[turn % len(said)] for turn in range(GENERATIONS))]):
        program = pathlib.Path(folder) / f"{number}.ptx"
        program.write_text(text)
        seen.append((judge(program)[0], text))
    best = max(seen, key=lambda one: one[0]["combined_score"])
    return best[1], best[0], [metrics for metrics, _ in seen]


def main():
    initial, evaluator, folder = map(pathlib.Path, sys.argv[1:])
    try:
        import openevolve  # noqa: F401

        run = evolved
    except ImportError:
        run = one_by_one
    code, metrics, all_metrics = run(initial, evaluator, folder)
    print(json.dumps({"with": run.__name__, "code": code, "metrics": metrics, "all": all_metrics}))


if __name__ == "__main__":
    main()
