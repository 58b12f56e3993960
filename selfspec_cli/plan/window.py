"""How far into the output acceptance was observed, against how far traffic goes."""

from typing import Literal

import pandas as pd

FACTOR = 2.0  # lengths beyond this many times the observed window make a rule's window partial
_ENDED = ("eos", "stop")  # the text ended by itself: nothing after it was left unobserved


def window_of(paths: pd.DataFrame) -> Literal["full", "partial"]:
    """Return `partial` where outputs may run past twice the longest observed output.

    A path that ended by itself was seen whole, so only its own length counts; one that was cut may
    run as far as its request allows.

    Args:
        paths: path table of a bucket.
    """
    if paths.empty:
        return "full"
    observed = float(paths["tokens"].max())
    ended = paths["finish"].isin(_ENDED)
    reach = paths["tokens"].where(ended, paths["allowed_tokens"])
    return "partial" if float(reach.max()) > FACTOR * observed else "full"
