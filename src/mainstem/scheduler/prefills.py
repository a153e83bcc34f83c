"""Schedules the prompts of running requests, each to its end before the next one begins.

They are computed in chunks of what replies leave of a step (Agrawal et al. 2024, Sarathi-Serve). With one tenant they
come in order of arrival, and before those that wait. Several tenants have theirs computed in the order of their finish
tags (`VirtualTime`), and waiting requests with smaller tags come first. So a short prompt need not wait for a long one
of another tenant that is under way, and long ones of several tenants are not drawn out by each other.

It knows who runs, and leaves it to `Admission` who is let in.
"""

from __future__ import annotations

from mainstem.scheduler.admission import Admission
from mainstem.scheduler.request import Request
from mainstem.scheduler.step import Step
from mainstem.scheduler.tenants import TenantQueues


class Prefills:
    """The prompts that are being computed.

    Args:
        waiting: who waits, by tenant.
        running: who runs, by their places; the scheduler's own list.
        admission: lets those in who are to come before.
    """

    def __init__(self, waiting: TenantQueues, running: list[Request], admission: Admission) -> None:
        self._waiting = waiting
        self._running = running
        self._admission = admission

    def schedule(self, step: Step, budget: int) -> int:
        """Schedule tokens of prompts; returns what is left of the budget for those that wait."""
        prefills = [request for request in self._running if request.num_remaining > 1]
        several = len(self._waiting.live) > 1
        if several:
            prefills.sort(key=lambda request: request.finish_tag)
        for index, request in enumerate(prefills):
            if several:
                budget = self._admission.admit_before(prefills[index:], step, budget)
            if budget == 0:
                break
            num_tokens = min(budget, step.most_tokens(request))
            if num_tokens:
                step.schedule(request, num_tokens)
            budget -= num_tokens
        return budget
