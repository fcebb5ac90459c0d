"""How does a script get its trained model? By trained_model, which reads it or trains it now.

A checkpoint is a file with the weights, the recipe and the losses of the training. So one that was
made with other settings is noticed and made again.
"""

import argparse
import io
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from shared import paths
from shared.toy_language import VOCABULARY
from shared.toy_model import MakeAttention
from shared.training.recipes import Recipe, Trained, new_model, train, variant

QUICK_STEPS = 30  # of a test drive
AS_RECIPE_SAYS = argparse.Namespace(
    d_model=None, heads=None, layers=None, device="cpu", retrain=False, quick=False
)

# Of the files. Raise it when an old file cannot be read any more, or when training has changed.
FORMAT = 5


def save_tensors(content: dict, path: Path) -> None:
    """Save as torch.save does, but a full disk raises OSError and leaves no half of a file.

    torch.save itself would raise a RuntimeError about positions in its archive, so it writes to
    memory; and it would keep the name of the file inside.
    """
    in_memory = io.BytesIO()
    torch.save(content, in_memory)
    with paths.whole_file(path) as unfinished:
        unfinished.write_bytes(in_memory.getvalue())


def made_of(recipe: Recipe) -> dict[str, Any]:
    """Returns all that decides what a trained model is, as its file says it."""
    return {"format": FORMAT, "vocabulary": list(VOCABULARY), "recipe": asdict(recipe)}


def save_checkpoint(trained: Trained) -> None:
    """Write model, recipe and losses to recipe.path. Raises OSError if the disk is full."""
    state_dict = trained.model.state_dict()
    content = made_of(trained.recipe) | {
        "history": {"loss": trained.losses},
        "stages": trained.stages,
        "state_dict": {name: tensor.cpu() for name, tensor in state_dict.items()},
    }
    save_tensors(content, trained.recipe.path)


def read_checkpoint(recipe: Recipe, make_attention: MakeAttention, device: str) -> Trained | None:
    """Returns the model of a recipe, as save_checkpoint wrote it, or None.

    If the file is damaged, of another version or of another attention, one line says so.
    """
    model = new_model(recipe, make_attention, device).eval()
    try:
        content = torch.load(recipe.path, map_location=device, weights_only=True)
        model.load_state_dict(content["state_dict"])
        as_made = all(content[name] == value for name, value in made_of(recipe).items())
        finite = all(numbers.isfinite().all() for numbers in model.parameters())
        trained = Trained(model, recipe, content["history"]["loss"], content["stages"])
    except FileNotFoundError:
        return None
    except Exception:  # unpickling foreign bytes can fail in any way
        as_made = finite = False
    if as_made and finite:
        return trained
    print(f"{paths.shown(recipe.path)} is damaged: trained again", flush=True)
    return None


# One process asks for the same model several times. The same weights in a different attention are
# a different model.
_trained_here: dict[tuple[Path, MakeAttention], Trained] = {}


def already_trained(
    recipe: Recipe, make_attention: MakeAttention, options: argparse.Namespace
) -> Trained | None:
    """Returns what this process has trained by a recipe, or what is in its file, or None."""
    if (recipe.path, make_attention) in _trained_here:
        return _trained_here[recipe.path, make_attention]
    if options.retrain:
        return None
    return read_checkpoint(recipe, make_attention, options.device)


def trained_model(
    recipe: Recipe,
    make_attention: MakeAttention,
    options: argparse.Namespace | None = None,
    seed: int | None = None,
) -> Trained:
    """Returns the trained model of a recipe, from its checkpoint, or trained now and saved.

    options: as the command line gives them. They size the model, but one head or one layer stays
        one. retrain: train even if there is a checkpoint. quick: without a checkpoint, train 30
        steps only and save them under a name of their own, so that they never stand in for a
        trained model. None: just the recipe.
    seed: unless given that of the options.

    With only_read among the options, it raises LookupError in place of training.
    """
    if options is None:
        options = argparse.Namespace(seed=recipe.seed, **vars(AS_RECIPE_SAYS))
    recipe = variant(
        recipe,
        seed=options.seed if seed is None else seed,
        d_model=options.d_model,
        num_heads=options.heads if recipe.num_heads > 1 else None,
        num_layers=options.layers if recipe.num_layers > 1 else None,
    )
    if options.device == "mps":  # float32: it must not stand in for the model that others have
        recipe = replace(recipe, name=f"{recipe.name}_mps")
    trained = already_trained(recipe, make_attention, options)
    if trained is None and options.quick:
        steps = min(recipe.steps, QUICK_STEPS)
        recipe = replace(recipe, name=f"{recipe.name}_quick", steps=steps)
        trained = already_trained(recipe, make_attention, options)
    if trained is None and getattr(options, "only_read", False):
        raise LookupError(recipe.name)
    if trained is None:
        paths.check_writable(recipe.path.parent)
        what = f"{recipe.steps:,} steps, {recipe.objective}, seed {recipe.seed}"
        print(f"training {recipe.name}: {what}", flush=True)
        trained = train(recipe, make_attention, options.device)
        save_checkpoint(trained)
        _trained_here[recipe.path, make_attention] = trained
    return trained
