"""What the lessons need besides the system: readable steps, fair measurements, checks of exercises."""

from spin_core.lab.lessons.cores import on_all_cores
from spin_core.lab.lessons.exercises import Answer, check_choose_gamma, check_replacement_distribution
from spin_core.lab.lessons.l1_speculation.distribution import DistributionTest, disguise, joint_distribution, distribution_test
from spin_core.lab.lessons.l1_speculation.measure import full_steps, goodput, phase_milliseconds, sweep
from spin_core.lab.lessons.l4_decomposition.checks import check_merge, check_rows
from spin_core.lab.lessons.show import measured, modelled, published, show
from spin_core.lab.lessons.l1_speculation.steps import Place, Step, read_steps

__all__ = [
    "Answer", "DistributionTest", "Place", "Step", "check_choose_gamma", "check_merge", "check_replacement_distribution",
    "check_rows", "disguise", "full_steps", "goodput", "joint_distribution", "distribution_test", "measured", "modelled",
    "on_all_cores", "phase_milliseconds", "published", "read_steps", "show", "sweep",
]
