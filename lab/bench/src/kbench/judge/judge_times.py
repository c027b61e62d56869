"""Times of a kernel and of the task's own function, each in a separate process, by the clock of the judge's."""

import math
import statistics
import time

# Sets of inputs, which calls take in turns.
SETS = 4
# A batch takes so long at least, seconds, that asking for it does not count; and has so many calls at most.
LEAST_BATCH = 0.02
MOST_CALLS = 1 << 17
# Pairs of batches at least, and how much longer the batch of twice as many calls takes in one of them at least.
LEAST_PAIRS = 4
LEAST_GROWTH = 1.25
# A call with new inputs takes so many times as long as the others at most, and so many seconds more for all sets. A
# disturbed clock shows more by chance, but not so often one after another.
MOST_OF_NEW = 3.0
LEAST_OF_NEW = 50e-6
NEW_BATCHES = 5
NEW_TRIALS = 4


class Wrong(Exception):
    """An output of a timed call is wrong: why."""


class Timing:
    def __init__(self, judge):
        self.judge = judge
        reference = judge.task_host
        self.hosts = {"candidate": judge.host, "reference": reference}
        here = [judge.base() for _ in range(SETS)]
        self.sets = {"candidate": here, "reference": [judge.base(reference, like=one) for one in here]}
        self.expected = [one.reference() for one in here]
        # Batches of N and of 2N.
        calls = max(1, judge.job["repetitions"] // 3)
        self.calls = {"candidate": calls, "reference": calls}

    def batch(self, who, calls, sets=SETS):
        """The time of a batch, seconds. The output of its last call, and of one drawn afterwards, must be right."""
        host, names = self.hosts[who], [one.name for one in self.sets[who][:sets]]
        started = time.perf_counter()
        host.ask("time", sets=names, calls=calls)
        took = time.perf_counter() - started
        if who == "candidate":
            kept = range(max(0, calls - 8), calls)
            for number in {kept[-1], self.judge.random.choice(kept)}:
                output = self.judge.arrays.of_bytes(*host.ask("output", number=number))
                why = self.judge.wrong(self.expected[number % sets], output)
                if why:
                    raise Wrong(f"the output of call {number + 1} of {calls} timed ones: {why}")
        return took

    def renew(self, places):
        """New values in sets, so that no output holds for two batches."""
        for at in places:
            values = self.judge.new_floats(self.sets["candidate"][at])
            for sets in self.sets.values():
                sets[at].write(values)
            self.expected[at] = self.sets["candidate"][at].reference()

    def settle(self, who):
        """Warms up, and takes so many calls a batch that it is longer than what asking for it takes."""
        self.batch(who, self.judge.job["warmup"])
        self.grow(who, self.batch(who, self.calls[who]))

    def grow(self, who, took):
        """More calls a batch, if one took less than it should; whether there are more."""
        if took >= LEAST_BATCH or self.calls[who] >= MOST_CALLS:
            return False
        wanted = int(self.calls[who] * max(2.0, 1.5 * LEAST_BATCH / max(took, 1e-9)))
        self.calls[who] = min(wanted, MOST_CALLS)
        return True

    def pair(self, who):
        self.renew([self.judge.random.randrange(SETS)])
        calls = self.calls[who]
        return self.batch(who, calls), self.batch(who, 2 * calls)

    def estimate(self, who, pair):
        """Seconds a call: what further calls took, or all of them where a disturbed clock says less than nothing."""
        once, twice = pair
        calls = self.calls[who]
        slope = (twice - once) / calls
        return slope if slope > 0.25 * twice / (2 * calls) else twice / (2 * calls)

    def rounds(self):
        """Rounds of candidate, reference, candidate: times a call of each, and all pairs of batches."""
        rounds, pairs = [], {"candidate": [], "reference": []}
        while len(rounds) < self.judge.job["rounds"] or len(pairs["candidate"]) < LEAST_PAIRS:
            of_round = {"candidate": [], "reference": []}
            for who in ("candidate", "reference", "candidate"):
                of_round[who].append(self.pair(who))
            for who, taken in of_round.items():
                pairs[who] += taken
            rounds.append({who: statistics.median(self.estimate(who, one) for one in of_round[who]) for who in of_round})
        return rounds, pairs

    def run(self):
        """Why the candidate's time cannot be believed, and the times."""
        try:
            self.settle("candidate")
            # What cannot be is known before the task's own function is timed.
            why = self.too_short([self.pair("candidate") for _ in range(2)])
            if why:
                return why, None
            self.settle("reference")
            # Until batches of both are as long as they should be: a disturbance makes one look so that is not.
            while True:
                rounds, pairs = self.rounds()
                took = {who: statistics.median(once for once, _ in taken) for who, taken in pairs.items()}
                if not any([self.grow(who, 2 * took[who]) for who in pairs]):
                    break
            why = self.impossible(pairs["candidate"]) or self.remembered(pairs["candidate"])
        except Wrong as wrong:
            return str(wrong), None
        if why:
            return why, None
        samples = {who: [1e6 * self.estimate(who, one) for one in pairs[who]] for who in pairs}
        ratios = sorted(one["reference"] / one["candidate"] for one in rounds)
        return None, {
            "candidate": summary(samples["candidate"]),
            "reference": summary(samples["reference"]),
            "speedup": statistics.median(ratios),
            "speedup_low": ratios[0],
            "speedup_high": ratios[-1],
            "rounds": len(rounds),
            "floor_us": self.floor()[0],
            "enqueued_us": None,
            "until_idle_us": None,
        }

    def impossible(self, pairs):
        """Why these times cannot be."""
        if max(twice / once for once, twice in pairs) >= LEAST_GROWTH:
            return self.too_short(pairs)
        once, twice = pairs[0]
        return self.too_short(pairs) or (
            f"its time does not grow with the number of calls: {self.calls['candidate']} took {once * 1e3:.3g} ms, "
            f"twice as many {twice * 1e3:.3g} ms"
        )

    def remembered(self, pairs):
        """Why the times are those of looking outputs up: calls whose inputs all have new values take much longer. What
        further such calls add is compared, which neither asking nor writing is part of."""
        usual = statistics.median(self.estimate("candidate", pair) for pair in pairs)
        for _ in range(NEW_TRIALS):
            least = {1: math.inf, SETS: math.inf}
            for _ in range(NEW_BATCHES):
                for calls in least:
                    self.renew(range(SETS))
                    least[calls] = min(least[calls], self.batch("candidate", calls, calls))
            more = least[SETS] - least[1]
            if more < max((SETS - 1) * MOST_OF_NEW * usual, LEAST_OF_NEW):
                return None
        new = more / (SETS - 1)
        return (
            f"a call takes {usual * 1e6:.3g} us with inputs that it was given before, and {new * 1e6:.3g} us with new ones:"
            " it remembers outputs"
        )

    def too_short(self, pairs):
        """Why no call can be so short: an upper limit of its time is below what the device or Python needs."""
        calls = self.calls["candidate"]
        most = min(twice / (2 * calls) for _, twice in pairs) * 1e6
        floor, words = self.floor()
        if most < floor:
            return f"a call took {most:.3g} us at most, and {words} needs {floor:.3g} us at least (its roofline floor)"
        if calls >= MOST_CALLS and statistics.median(once for once, _ in pairs) < LEAST_BATCH:
            return f"{calls} calls took less than {LEAST_BATCH * 1e3:.0f} ms: less than calling a function of Python takes"
        return None

    def floor(self):
        """Microseconds that the device needs at least to move the inputs and the output once, and for the operations
        that the task names (`flops`); and these words."""
        judge, rates = self.judge, self.judge.job["floor"]
        arrays = [value for value in self.sets["candidate"][0].inputs if judge.arrays.is_array(value)]
        size = sum(len(judge.arrays.to_bytes(value)[1]) for value in [*arrays, self.expected[0]])
        # What fits into the cache need not come from memory.
        rate = rates["bytes_per_us"] if SETS * size > 2 * rates["cache_bytes"] else rates["cache_bytes_per_us"]
        found = [(size / rate, f"{rates['device']} moving {size} B")]
        flops = getattr(judge.task.module, "flops", None)
        if flops is not None and rates["flops_per_us"] is not None:
            count = float(flops(**judge.task.configs[0][0]))
            found.append((count / rates["flops_per_us"], f"{rates['device']} computing {count:.3g} operations"))
        return max(found)


def summary(samples):
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return {
        "mean_us": statistics.fmean(samples),
        "median_us": quartiles[1],
        "iqr_us": quartiles[2] - quartiles[0],
        "samples": len(samples),
    }
