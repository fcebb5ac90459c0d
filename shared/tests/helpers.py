"""What several test files use: sizes, inputs, models for the pages."""

import contextlib
import itertools
import math
import os
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch.nn.utils import parameters_to_vector

from phase2_multi_head.multi_head_attention import MultiHeadAttention
from shared import visualization_utils
from shared.attention_utils import causal_mask
from shared.toy_model import ToyTransformer
from shared.training.recipes import Recipe, untrained_model

B, H, T_Q, T_K, D_K, D_V = 2, 3, 5, 7, 11, 13


def qkv(seed=0, *, t_q=T_Q, t_k=T_K, dtype=torch.float64, leading=(B, H), d_k=D_K, d_v=D_V):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((t_q, d_k), (t_k, d_k), (t_k, d_v))
    return [
        torch.randn(*leading, *shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in shapes
    ]


def near(found, expected, share=None):
    """Assert that two tensors, numbers, or tuples of them are apart by rounding at most.

    That is a share of the largest number expected, since rounding is relative to what was summed:
    1e-12, in float32 1e-5, if not said. It must leave ten times what any processor's rounding
    needs. So with TENTH=1 in the environment nobody may use more than a tenth of it, but where more
    than rounding is meant ("# why"). ATEN_CPU_CAPABILITY=default rounds otherwise: try that, too.
    """
    if isinstance(expected, tuple | list):
        for one, other in zip(found, expected, strict=True):
            near(one, other, share)
        return
    if not torch.is_tensor(found):
        found = torch.tensor(found, dtype=torch.float64)
    if not torch.is_tensor(expected):
        expected = torch.tensor(expected, dtype=torch.float64)
    if share is None:
        share = 1e-5 if expected.dtype == torch.float32 else 1e-12
    if "TENTH" in os.environ:
        share *= 0.1
    sizes = expected.detach().double().nan_to_num(posinf=0, neginf=0).abs()
    largest = sizes.amax().item() if expected.numel() else 0
    torch.testing.assert_close(found, expected, rtol=0, atol=share * largest)


def as_printed(found, printed, digits):
    """Assert that, rounded to so many digits behind the point, it is what somebody printed."""
    printed = torch.tensor(printed, dtype=found.dtype)
    rounding = 0.51 * 10**-digits  # why: that of whoever printed it
    torch.testing.assert_close(found, printed, rtol=0, atol=rounding)


def some_mask(generator, shape):
    """About two thirds visible, and the first query of it sees nothing at all."""
    mask = torch.rand(shape, generator=generator) < 0.67
    mask[..., 0, :] = False
    return mask


EXPLORER_RECIPES = (
    Recipe("both sides", "masked word", num_heads=4, num_layers=2, steps=0),
    Recipe("causal", "next word", num_heads=4, num_layers=2, steps=0),
    Recipe("small", "masked word", num_heads=3, num_layers=3, steps=0, d_model=21),
    Recipe("small causal", "next word", num_heads=5, num_layers=1, steps=0, d_model=15),
)


def sharp_model(recipe):
    """Random weights, but large: biases, words that outweigh positions, attention that decides."""
    trained = untrained_model(recipe, MultiHeadAttention)
    with torch.no_grad():
        for name, parameter in trained.model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            if "norm.weight" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            if name == "embedding.weight":
                parameter.mul_(4)
            if "w_q.weight" in name or "w_k.weight" in name:
                parameter.mul_(5)
    trained.model.eval()
    return trained


def as_if_trained(trained, steps=40):
    """As if each of so many steps had brought the numbers equally far, from 0."""
    numbers = parameters_to_vector(trained.model.parameters()).detach()
    stages = {step: numbers * (step / steps) for step in range(steps + 1)}
    return replace(trained, recipe=replace(trained.recipe, steps=steps), stages=stages)


def small_records(trained):
    """Models by their names, as the page gets those of its wagers."""
    from phase3_visualization.explorer.models import small_record

    def as_it_is(recipe):
        return {"causal": recipe.objective == "next word", "num_layers": recipe.num_layers}

    return [small_record(name, one.model) | as_it_is(one.recipe) for name, one in trained.items()]


# ---- small random models of the library transformers

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1}
WIDE = GROUPED | {"head_dim": 10}  # heads that together are wider than the model
WINDOW = {"sliding_window": 3}
ONE_WINDOW = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
MAY_SLIDE = {"use_sliding_window": True}
SCALED = {"query_pre_attn_scalar": 7}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 3}
LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 14,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
}
MODEL_KINDS = {  # kind, as configurations call it -> what a small one is made of
    "bert": SIZES,
    "roberta": SIZES,
    "electra": SIZES | {"embedding_size": 10},
    "distilbert": SIZES,
    "modernbert": SIZES | {"local_attention": 6, "cls_token_id": 0, "sep_token_id": 1},
    "gpt2": SIZES | {"bos_token_id": 0, "eos_token_id": 1},
    "opt": SIZES | {"ffn_dim": 16, "word_embed_proj_dim": 48},
    "llama": GROUPED,
    "mistral": WIDE | WINDOW,
    "mixtral": GROUPED | WINDOW | EXPERTS,
    "qwen2": GROUPED | ONE_WINDOW | MAY_SLIDE,
    "qwen3": WIDE | ONE_WINDOW | MAY_SLIDE,
    "gemma": WIDE,
    "gemma2": WIDE | ONE_WINDOW | SCALED | {"attn_logit_softcapping": 2.0},
    "gemma3_text": WIDE | ONE_WINDOW | SCALED,
    "olmo2": GROUPED,
    "phi3": GROUPED,
    "smollm3": GROUPED,
    "glm4": WIDE,
    "deepseek_v3": GROUPED | LATENT,
    "gpt_oss": WIDE | ONE_WINDOW | EXPERTS,
    "vit": SIZES | {"image_size": 20, "patch_size": 5},
}


def tiny_model(kind, seed=0, *, head="AutoModel", **more):
    """A random model of two layers; head: the library's class that makes it."""
    transformers = pytest.importorskip("transformers", reason='needs: -e ".[pretrained]"')
    config = transformers.AutoConfig.for_model(kind, **MODEL_KINDS.get(kind, GROUPED) | more)
    model = getattr(transformers, head).from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():  # large enough that heads choose, biases not 0
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    return model.eval()


def tiny_language_model(kind, seed=0, **more):
    """A tiny_model with a tokenizer of six words; skipped without the extra."""
    pytest.importorskip("transformers", reason='needs: pip install -e ".[pretrained]"')
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from shared.published import LanguageModel

    words = ["<unk>", "<end>", "the", "cat", "sat", "on", "a", "mat"]
    numbers = {word: number for number, word in enumerate(words)}
    raw = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<end>", padding_side="right"
    )
    return LanguageModel(tiny_model(kind, seed, **more), tokenizer, f"a random {kind}")


@torch.no_grad()
def in_torch(trained, tokens, levers):
    """A pass of the explorer by PyTorch: levers are masks and weights of MultiHeadAttention."""
    recipe, length = trained.recipe, len(tokens)
    bias = trained.model.blocks[0].attention.w_q.bias is not None
    make_attention = partial(MultiHeadAttention, bias=bias)
    sizes = (recipe.d_model, recipe.num_heads, recipe.num_layers)
    model = ToyTransformer(*sizes, make_attention=make_attention).eval()
    model.load_state_dict(trained.model.state_dict())
    d_k = recipe.d_model // recipe.num_heads
    if "divisor" in levers:
        for block in model.blocks:
            for parameter in block.attention.w_q.parameters():
                parameter.mul_(math.sqrt(d_k) / levers["divisor"])
    for name in levers.get("removed", []):
        layer, head = map(int, name.split("."))
        model.blocks[layer].attention.w_o.weight[:, head * d_k : (head + 1) * d_k] = 0
    mask = torch.ones(length, length, dtype=torch.bool)
    if levers.get("causal", recipe.objective == "next word"):
        mask = ~causal_mask(length) if levers.get("bug") else causal_mask(length)
    logits, layers = model(torch.tensor([tokens]), mask=mask)
    return SimpleNamespace(logits=logits[0], weights=torch.cat(layers), mask=mask)


def open_watched(browser, address, errors, **context):
    """A new tab. Its complaints land in errors, and what it asks for beside its own file."""
    allowed = (address.split("#")[0], "about:blank")

    def hear(message):
        if message.type in ("error", "warning"):
            errors.append(message.text)

    def watch(request):
        if not request.url.startswith(allowed):
            errors.append(request.url)

    page = browser.new_page(**context)
    page.on("console", hear)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", watch)
    page.goto(address)
    return page


def axe_violations(page):
    """What axe-core finds wrong with a page as it stands: "rule: help: where"."""
    missing = 'no axe: pip install -e ".[browser]"'
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=missing)
    said = []
    for rule in axe.Axe().run(page).response["violations"]:
        where = [node["target"] for node in rule["nodes"]]
        said.append(f"{rule['id']}: {rule['help']}: {where}")
    return said


# ---- links


def anchors(page):
    """Those that are written, and as GitHub makes them: "## 6. The block" -> 6-the-block."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall('<a id="([^"]+)">', text)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        letters = re.sub(r"[^\w\- ]", "", heading.lower())
        yield letters.strip().replace(" ", "-")


# ---- pictures

README_WIDTH = 900  # pixels that a page gives a picture at most; a narrower one keeps its size


@contextlib.contextmanager
def watched_texts():
    """Figure saved meanwhile -> its texts: (text, pixels high at README width, bounding box).

    A text that is wider than its figure is an AssertionError.
    """
    found, drawing, draw = {}, [], Text.draw

    def watched_draw(text, renderer, *args, **options):
        draw(text, renderer, *args, **options)
        if drawing and text.get_visible() and text.get_text().strip():
            inch = visualization_utils.INCH  # on a page, however dense
            width = drawing[-1].get_figwidth() * inch
            pixels = text.get_fontsize() / 72 * inch * min(1, README_WIDTH / width)
            box = text.get_window_extent(renderer)
            found[drawing[-1]][text] = (text.get_text(), pixels, box)
            fits = box.x0 > -1 and box.x1 < drawing[-1].bbox.width + 1
            assert fits, f"wider than its figure: {text.get_text()}"

    def watched(save):
        def watched_save(figure, *args, **options):
            drawing.append(figure)
            found[figure] = {}
            saved = save(figure, *args, **options)
            drawing.pop()
            return saved

        return watched_save

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", watched_draw)
        patch.setattr(Figure, "savefig", watched(Figure.savefig))
        patch.setattr(visualization_utils, "picture_of", watched(visualization_utils.picture_of))
        yield found


def smallest(texts):
    """The text that is hardest to read: (pixels, text)."""
    return min((round(pixels, 1), text) for text, pixels, _ in texts.values())


def overlapping(texts):
    """Pairs of texts of which one lies on the other: upright ones, by more than a pixel."""
    upright = []
    for artist, (text, _, box) in texts.items():
        if artist.get_rotation() % 90 == 0:
            upright.append((text, box.padded(-1)))
    pairs = itertools.combinations(upright, 2)
    return [(text, other) for (text, box), (other, on_it) in pairs if box.overlaps(on_it)]
