"""Unpack a published model once, and keep what came out of it.

SmolLM2 comes as one file of 4-bit numbers. The library needs long to unpack them, and would do so
in every script. So the weights are kept as the numbers they stand for, with configuration and
tokenizer, in one file of the format safetensors, from which the same model is read in seconds. The
file says what it was made from, and has a checksum: what was made from another file or by another
version, and what is damaged, is made again.
"""

import errno
import hashlib
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from shared import paths
from shared.checkpoints import checksum

LIBRARIES = ("transformers", "gguf")  # which unpack


def origin_of(file: Path, package: str) -> str:
    """Everything that decides the numbers: the packed file, byte for byte, and the versions of what
    unpacks it.
    """
    versions = [f"{name} {metadata.version(name)}" for name in (package, *LIBRARIES)]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{file.name} of {', '.join(versions)}, sha256 {digest}"


def seal(facts: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """The checksum of all that is kept. The format has its facts in no order, so they are sorted."""
    return checksum(dict(sorted(facts.items())) | {"state_dict": tensors})


def keep(model: nn.Module, tokenizer: Any, path: Path, origin: str) -> None:
    """Write a Llama and its tokenizer to one file, whole or not at all. Raises OSError if there is
    no room for it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    config = model.config.to_dict()
    config.pop("quantization_config", None)  # it says how the packed file is to be read
    facts = {
        "made from": origin,
        "config": json.dumps(config),
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "special tokens": json.dumps(tokenizer.special_tokens_map),
    }
    tensors = dict(sorted(model.state_dict().items()))
    facts["checksum"] = seal(facts, tensors)
    with paths.whole_file(path) as unfinished:
        try:
            save_file(tensors, unfinished, facts)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(path)) from None


def kept(path: Path, origin: str) -> tuple[nn.Module, Any]:
    """The model and the tokenizer that keep() wrote.

    Raises FileNotFoundError if there is no such file, and ValueError, in words for the reader, if
    it is damaged or was made from something else.
    """
    import tokenizers
    import transformers
    from safetensors import safe_open

    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "nothing is kept", str(path))
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        whole = facts["checksum"] == seal(facts, tensors)
    except Exception as error:  # reading foreign bytes can fail in any way
        raise ValueError(f"is damaged ({type(error).__name__})") from None
    if not whole:
        raise ValueError("is damaged (its checksum is another)")
    if facts["made from"] != origin:
        raise ValueError("was made from another file, or by another version")
    config = transformers.LlamaConfig.from_dict(json.loads(facts["config"]))
    model = transformers.LlamaModel.from_pretrained(
        None, config=config, state_dict=tensors, attn_implementation="eager", dtype="float32"
    )
    raw = tokenizers.Tokenizer.from_str(facts["tokenizer"])
    special_tokens = json.loads(facts["special tokens"])
    return model, transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **special_tokens)


def unpacked_once(
    path: Path, origin: str, unpack: Callable[[], tuple[nn.Module, Any]]
) -> tuple[nn.Module, Any]:
    """The model and the tokenizer that are kept in this file, or else those that unpack() gives,
    which are kept then.

    A file that cannot be written stops nobody: the model is there, and is unpacked again the next
    time.
    """
    try:
        return kept(path, origin)
    except FileNotFoundError:
        print(
            f"unpacking a model, once, which takes a while: {paths.shown(path)} will keep it",
            flush=True,
        )
    except ValueError as error:
        print(f"{paths.shown(path)} {error}: unpacking the model again", flush=True)
    model, tokenizer = unpack()
    try:
        keep(model, tokenizer, path, origin)
    except OSError as error:
        print(
            f"{paths.shown(path)} cannot be kept ({error.strerror}): the next script unpacks it again",
            flush=True,
        )
    return model, tokenizer
