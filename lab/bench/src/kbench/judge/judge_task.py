"""A robust-kbench task as the judge reads it, and what ends a judgement."""

import importlib.util
import json
import pathlib


class Broken(Exception):
    """Nothing can be judged: whose fault it is (task, kernel, machine), and why."""

    def __init__(self, whose, why):
        super().__init__(why)
        self.whose = whose


def load_module(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Task:
    """A task's folder."""

    def __init__(self, folder, multi):
        folder = pathlib.Path(folder)
        try:
            config = json.loads((folder / "config_forward.json").read_text())
            self.module = load_module(folder / "func_forward.py", "func_forward")
        except Exception as error:
            whose = "machine" if isinstance(error, ModuleNotFoundError) else "task"
            raise Broken(whose, f"{folder}: {type(error).__name__}: {error}") from error
        kind = "multi" if multi else "single"
        needed = [f"{kind}_{part}_configs" for part in ("input", "init", "shared")]
        missing = [key for key in needed if not config.get(key)]
        missing += [name for name in ("forward_fn", "Model", "get_inputs") if not hasattr(self.module, name)]
        if missing:
            raise Broken("task", f"{folder}: no {', '.join(missing)}")
        inputs, inits, shared = (config[key] for key in needed)
        # The shared ones last, and for both, as the benchmark does.
        self.configs = [({**a, **c}, {**b, **c}, c) for b in inits for a in inputs for c in shared]
