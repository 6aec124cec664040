"""Lossless accept / reject: the text follows the target's law whatever the drafter proposes."""

from spin_core.verify.chain import Verdict, verify_chain

__all__ = ["Verdict", "verify_chain"]
