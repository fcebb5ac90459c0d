"""Which scripts the course has, in the order of the lessons: each phase's __main__.py has a Plan."""

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
    needs: Mapping[str, str] = field(default_factory=dict)  # script -> a package without which it cannot run

    @property
    def all(self) -> tuple[str, ...]:
        return self.scripts + self.alone + self.longer

    def can_run(self, script: str) -> bool:
        """Whether the package that it needs is installed."""
        return script not in self.needs or find_spec(self.needs[script]) is not None


def plan_of(phase: str) -> Plan:
    """The plan of "phase1" to "phase4", with the full names of its modules."""
    folder = PHASES[phase]
    plan: Plan = importlib.import_module(f"{folder}.__main__").PLAN
    scripts, slow, alone, longer = (
        tuple(f"{folder}.{name}" for name in names) for names in (plan.scripts, plan.slow, plan.alone, plan.longer)
    )
    return Plan(plan.train, scripts, slow, alone, longer, {f"{folder}.{name}": it for name, it in plan.needs.items()})


def plans() -> dict[str, Plan]:
    return {phase: plan_of(phase) for phase in PHASES}


def path_of(module: str) -> str:
    """ "a.b" -> "a/b.py"."""
    return module.replace(".", "/") + ".py"


def question_of(module: str) -> str:
    """What a script asks: the first line of its docstring."""
    return (importlib.import_module(module).__doc__ or module).splitlines()[0]
