"""Unpack a published model once, and keep what came out of it.

SmolLM2 comes as one file of 4-bit numbers. The library needs long to unpack them, and would do so
in every script. So the weights are kept as the numbers they stand for, with configuration and
tokenizer, as a checkpoint, from which the same model is read in seconds. The file says what it was
made from: what was made from another file or by another version, and what is damaged, is made
again.
"""

import hashlib
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import nn

from shared import paths
from shared.training.checkpoints import save_tensors, whole_content

LIBRARIES = ("transformers", "gguf")  # which unpack


def what_made(file: Path, package: str) -> str:
    """Everything that decides the numbers: the packed file's bytes, and the versions in use."""
    versions = [f"{name} {metadata.version(name)}" for name in (package, *LIBRARIES)]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{file.name} of {', '.join(versions)}, sha256 {digest}"


def keep_unpacked(model: nn.Module, tokenizer: Any, path: Path, origin: str) -> None:
    """Writes a Llama and its tokenizer to one file. Raises OSError if there is no room for it."""
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # it says how the packed file is to be read
    content = {
        "made from": origin,
        "config": json.dumps(config),
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special tokens": tokenizer.special_tokens_map,
        "state_dict": model.state_dict(),
    }
    save_tensors(content, path)


def read_unpacked(path: Path, origin: str) -> tuple[nn.Module, Any]:
    """The model and the tokenizer that keep_unpacked wrote.

    Raises FileNotFoundError if there is no such file, and ValueError, in words for the reader, if
    it is damaged or was made from something else.
    """
    import tokenizers
    import transformers

    content = whole_content(path, "cpu", {"made from": origin})
    model = transformers.LlamaModel.from_pretrained(
        None,
        config=transformers.LlamaConfig.from_dict(json.loads(content["config"])),
        state_dict=content["state_dict"],
        attn_implementation="eager",
        dtype="float32",
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(content["tokenizer"]),
        **content["special tokens"],
    )
    return model, tokenizer


def unpacked_once(
    path: Path, origin: str, unpack: Callable[[], tuple[nn.Module, Any]]
) -> tuple[nn.Module, Any]:
    """The model and the tokenizer that this file keeps, or those that unpack() gives.

    A file that cannot be written stops nobody: the next script unpacks the model again.
    """
    name = paths.shown(path)
    try:
        return read_unpacked(path, origin)
    except FileNotFoundError:
        print(f"unpacking a model, once, which takes a while: {name} will keep it", flush=True)
    except ValueError as error:
        print(f"{name} {error}: unpacking the model again", flush=True)
    model, tokenizer = unpack()
    try:
        keep_unpacked(model, tokenizer, path, origin)
    except OSError as error:
        print(f"{name} cannot be kept ({error.strerror}): the next script unpacks it again")
    return model, tokenizer
