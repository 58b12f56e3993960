"""Peak memory of observation at few and at many output tokens; run as a program of its own."""

import json
from pathlib import Path

from checkpoints import random_model
from replay_helpers import request, setting_of, view_of

from selfspec_cli.engine.laws import Processor
from selfspec_cli.replay.observe import PathJob, observe

VOCAB, LAYERS = 8192, 8
FEW, MANY = 64, 512  # output tokens


def peak_bytes() -> int:
    """Of this program alone: `ru_maxrss` would begin at the size of the process that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell a program's peak memory")


def observe_both(setting, tokens: int) -> int:
    """Observe two regenerated paths, then the first again as recorded text; returns the peak."""
    exits = tuple(range(1, LAYERS))
    wanted = [request(i, (5, 9, 11 + i), tokens) for i in range(2)]
    jobs = [PathJob(request=one, temperature=0.7, source="regenerated") for one in wanted]
    paths = observe(setting, jobs, exits)
    told = request(9, (5, 9, 11), tokens, completion=paths[0].tokens)
    observe(setting, [PathJob(request=told, temperature=0.7, source="recorded")], exits)
    return peak_bytes()


def hoard():
    """Broken twin: every law that was ever computed is kept."""
    kept, real = [], Processor.law_of

    def law_of(*args, **options):
        kept.append(real(*args, **options))
        return kept[-1]

    Processor.law_of = law_of
    return kept


def main() -> None:
    model = random_model(
        "gpt2", vocab_size=VOCAB, num_hidden_layers=LAYERS, max_position_embeddings=600, gain=4.0
    )
    setting = setting_of(view_of(model), eos=None)
    few = observe_both(setting, FEW)
    many = observe_both(setting, MANY)
    kept = hoard()
    twin = observe_both(setting, MANY)
    print(json.dumps({"few": few, "many": many, "twin": twin, "kept": len(kept)}))


if __name__ == "__main__":
    main()
