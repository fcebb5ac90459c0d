"""How does a script get its trained model? It asks trained_model, which reads it or trains it now.

A checkpoint is a file with the weights, the recipe and the losses of the training. So one that was
made with other settings is noticed and made again.
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

# Of the files. Raise it when an old file cannot be read any more, or when training has changed.
FORMAT = 4


def checksum(content: dict) -> str:
    """Returns a digest of all else that a checkpoint holds: it tells whether a bit has changed.

    Raises TypeError for what cannot be JSON, such as a tensor in the recipe.
    """
    facts = dict(content)
    for name in ("state_dict", "stages", "checksum"):
        facts.pop(name, None)
    digest = hashlib.sha256(json.dumps(facts).encode())
    tensors = content["state_dict"] | content.get("stages", {})
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def save_tensors(content: dict, path: Path) -> None:
    """Save as torch.save does, but a full disk raises OSError and leaves no half of a file.

    torch.save itself would raise a RuntimeError about positions in its archive, so it writes to
    memory; and it would keep the name of the file inside.
    """
    in_memory = io.BytesIO()
    torch.save(content, in_memory)
    with paths.whole_file(path) as unfinished:
        unfinished.write_bytes(in_memory.getvalue())


def save_checkpoint(trained: Trained) -> None:
    """Write model, recipe and losses to recipe.path. Raises OSError if the disk is full."""
    state_dict = trained.model.state_dict()
    content = {
        "format": FORMAT,
        "vocabulary": list(VOCABULARY),
        "recipe": asdict(trained.recipe),
        "history": {"loss": trained.losses},
        "stages": trained.stages,
        "state_dict": {name: tensor.cpu() for name, tensor in state_dict.items()},
    }
    save_tensors(content | {"checksum": checksum(content)}, trained.recipe.path)


def whole_content(path: Path, device: str) -> dict:
    """Returns what save_checkpoint wrote. Raises ValueError, in words, for any other file."""
    try:
        content = torch.load(path, map_location=device, weights_only=True)
        of_this_version = isinstance(content, dict) and content.get("format") == FORMAT
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
    """Returns the model of a recipe, as save_checkpoint wrote it.

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
    except (KeyError, TypeError, ValueError, AttributeError):  # made by hand: its checksum fits
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


# One process asks for the same model several times. The same weights in a different attention are
# a different model.
_trained_here: dict[tuple[Path, MakeAttention], Trained] = {}


def load_or_train(
    recipe: Recipe,
    make_attention: MakeAttention,
    *,
    device: str = "cpu",
    retrain: bool = False,
    quick: bool = False,
) -> Trained:
    """Returns the trained model of a recipe, from its checkpoint, or trained now and saved.

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
        steps = min(recipe.steps, training.QUICK_STEPS)
        quick_recipe = replace(recipe, name=f"{recipe.name}_quick", steps=steps)
        return load_or_train(quick_recipe, make_attention, device=device, retrain=retrain)
    paths.check_writable(recipe.path.parent)
    what = f"{recipe.steps:,} steps, {recipe.objective}, seed {recipe.seed}"
    print(f"training {recipe.name}: {what}", flush=True)
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
    """Returns load_or_train as the options say. A recipe with one head or one layer keeps it."""
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
