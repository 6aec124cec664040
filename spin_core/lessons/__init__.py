"""What the lessons need besides the system itself: steps made readable, a test of the law, checks of exercises."""

from spin_core.lessons.exercises import Answer, check_choose_gamma, check_replacement_law
from spin_core.lessons.law import LawTest, disguise, joint_law, law_test
from spin_core.lessons.steps import Place, Step, read_steps

__all__ = ["Answer", "LawTest", "Place", "Step", "check_choose_gamma", "check_replacement_law", "disguise", "joint_law",
           "law_test", "read_steps"]
