"""Checkpoints: trained models as files that say what made them, and the one call that most scripts
need.

A file holds the weights, the recipe and the losses of the training. So one that was made with other
settings is noticed and made again: trained_model reads the model of a recipe, or trains it now and
saves it.
"""

import argparse
import errno
import hashlib
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import torch

from shared import paths, training
from shared.toy_language import VOCABULARY
from shared.toy_model import MakeAttention
from shared.training import Recipe, Trained, new_model, variant

FORMAT = (
    4  # of the files; raise it when an old file cannot be read any more or training has changed
)


def checksum(content: dict) -> str:
    """Of all that a checkpoint holds but this: who reads the file does not see by itself that a bit
    of it has changed.

    Raises TypeError for what cannot be JSON, such as a tensor in the recipe.
    """
    facts = {
        name: part
        for name, part in content.items()
        if name not in ("state_dict", "stages", "checksum")
    }
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name, tensor in (content["state_dict"] | content.get("stages", {})).items():
        digest.update(
            f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.cpu().numpy().tobytes()
        )
    return digest.hexdigest()


def save_tensors(content: dict, path: Path) -> None:
    """Save as torch.save does, but the file is whole or not there. Raises OSError if the disk is
    full.

    On a full disk torch.save itself raises a RuntimeError about positions in its archive. So it
    writes to memory.
    """
    in_memory = io.BytesIO()  # which has no name: given one, torch.save would keep that inside
    torch.save(content, in_memory)
    with paths.whole_file(path) as unfinished:
        unfinished.write_bytes(in_memory.getvalue())


def save_checkpoint(trained: Trained) -> None:
    """Write model, recipe and losses to recipe.path. Raises OSError if the disk is full."""
    content = {
        "format": FORMAT,
        "vocabulary": list(VOCABULARY),
        "recipe": asdict(trained.recipe),
        "history": {"loss": trained.losses},
        "stages": trained.stages,
        "state_dict": {name: tensor.cpu() for name, tensor in trained.model.state_dict().items()},
    }
    save_tensors(content | {"checksum": checksum(content)}, trained.recipe.path)


def whole_content(path: Path, device: str) -> dict:
    """What save_checkpoint wrote. Raises ValueError, in words for the reader, for a damaged or
    another file.
    """
    try:
        content = torch.load(path, map_location=device, weights_only=True)
        of_this_version = isinstance(content, dict) and bool(content.get("format") == FORMAT)
        whole = of_this_version and content["checksum"] == checksum(content)
    except FileNotFoundError:
        raise
    except Exception as error:  # unpickling foreign bytes can fail in any way
        raise ValueError(f"is damaged ({type(error).__name__})") from None
    if not of_this_version:
        raise ValueError("is not a checkpoint of this version of the code")
    if not whole:
        raise ValueError("is damaged (its checksum is another)")
    return content


def load_checkpoint(recipe: Recipe, make_attention: MakeAttention, device: str = "cpu") -> Trained:
    """Read the model of a recipe, as save_checkpoint wrote it.

    Raises FileNotFoundError if there is none, OSError for a folder or a pipe in its place, and
    ValueError, in words for the reader, for a damaged or another file.
    """
    if recipe.path.exists() and not recipe.path.is_file():  # nothing may ever come out of a pipe
        raise OSError(errno.EINVAL, "is not a file: move it away", str(recipe.path))
    content = whole_content(recipe.path, device)
    try:
        made_of = (content["recipe"], content["vocabulary"])
        losses = [float(loss) for loss in content["history"]["loss"]]
        stages = {int(step): numbers for step, numbers in content["stages"].items()}
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ):  # its checksum fits, so somebody made it by hand
        raise ValueError("is damaged (a part is missing, or is something else)") from None
    if made_of != (asdict(recipe), list(VOCABULARY)):
        raise ValueError("was made with other settings")
    model = new_model(recipe, make_attention, device)
    own_dtypes = {name: numbers.dtype for name, numbers in model.state_dict().items()}
    try:
        model.load_state_dict(content["state_dict"])
    except RuntimeError:
        raise ValueError("holds the weights of another model") from None
    if own_dtypes != {name: numbers.dtype for name, numbers in content["state_dict"].items()}:
        raise ValueError("is damaged (its weights have another dtype)")
    if not all(numbers.isfinite().all() for numbers in model.state_dict().values()):
        raise ValueError("is damaged (numbers that are not finite)")
    model.eval()
    return Trained(model, recipe, losses, stages)


# One process asks for the same model several times; another attention around the same weights is
# another model.
_trained_here: dict[tuple[Path, MakeAttention], Trained] = {}


def load_or_train(
    recipe: Recipe,
    make_attention: MakeAttention,
    *,
    device: str = "cpu",
    retrain: bool = False,
    quick: bool = False,
) -> Trained:
    """The trained model of a recipe: from its checkpoint, or trained now and saved.

    retrain: train even if there is a checkpoint. quick: without a checkpoint, train 30 steps only
    and save them under a name of their own, so that they never stand in for a trained model.
    """
    if (recipe.path, make_attention) in _trained_here:
        return _trained_here[recipe.path, make_attention]
    try:
        if not retrain:
            return load_checkpoint(recipe, make_attention, device)
    except FileNotFoundError:
        pass
    except ValueError as error:
        print(f"{paths.shown(recipe.path)} {error}: training it again", flush=True)
    if quick:
        quick_recipe = replace(
            recipe, name=f"{recipe.name}_quick", steps=min(recipe.steps, training.QUICK_STEPS)
        )
        return load_or_train(quick_recipe, make_attention, device=device, retrain=retrain)
    paths.check_writable(recipe.path.parent)
    print(
        f"training {recipe.name}: {recipe.steps:,} steps, {recipe.objective}, seed {recipe.seed}",
        flush=True,
    )
    trained = training.train(recipe, make_attention, device)
    save_checkpoint(trained)
    _trained_here[recipe.path, make_attention] = trained
    return trained


def trained_model(
    recipe: Recipe,
    make_attention: MakeAttention,
    options: argparse.Namespace,
    seed: int | None = None,
) -> Trained:
    """load_or_train as the options say; a recipe with one head or one layer by design keeps it."""
    sized = variant(
        recipe,
        seed=options.seed if seed is None else seed,
        d_model=options.d_model,
        num_heads=options.heads if recipe.num_heads > 1 else None,
        num_layers=options.layers if recipe.num_layers > 1 else None,
    )
    return load_or_train(
        sized, make_attention, device=options.device, retrain=options.retrain, quick=options.quick
    )
