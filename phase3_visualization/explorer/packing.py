"""How does a trained model travel inside a page?

As JSON: the sizes that the forward pass of page/model/attention.js asks for, and all numbers as one text. The bytes
are those of float32, so that a model in the page is the very model that was trained.
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor


def pack(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """A state_dict, one parameter after the other: name -> shape and start, and all numbers as base64 of float32."""
    places, numbers, start = {}, [], 0
    for name, parameter in state.items():
        places[name] = {"shape": list(parameter.shape), "start": start}
        numbers.append(parameter.detach().cpu().numpy().astype("<f4").ravel())  # < : little endian, as browsers read it
        start += parameter.numel()
    return {"parameters": places, "numbers": base64.b64encode(np.concatenate(numbers).tobytes()).decode()}
