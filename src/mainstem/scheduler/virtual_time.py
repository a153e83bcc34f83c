"""When the prompts of tenants would be done if the tokens of every step were divided between them equally.

They are not divided, but go to the prompts in the order in which they would be done then (weighted fair queueing:
Demers, Keshav and Shenker 1989; Parekh and Gallager 1993). The virtual time is how many tokens of prompts a tenant
that always has some would have got since the start. A prompt that begins has a finish tag: the virtual time at which
its last token would be computed. It knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping


class VirtualTime:
    """The clock, and how far the prompts of each tenant reach.

    Attributes:
        now: in tokens of prompts.
    """

    def __init__(self) -> None:
        self.now = 0.0
        # The finish tags of tenants' last prompts, while these would not be done or more of the tenant waits.
        self._finish: dict[Hashable, float] = {}

    def finish_tag(self, tenant: Hashable, num_tokens: int) -> float:
        """The tag of a tenant's next prompt, of which so many tokens are to be computed."""
        return self._finish.get(tenant, self.now) + num_tokens

    def begin(self, tenant: Hashable, num_tokens: int) -> float:
        """The prompt begins; returns its tag."""
        self._finish[tenant] = tag = self.finish_tag(tenant, num_tokens)
        return tag

    def give_back(self, tenant: Hashable, num_tokens: int) -> None:
        """So many tokens of a prompt that began will not be computed."""
        if tenant in self._finish:
            self._finish[tenant] -= num_tokens

    def advance(self, num_tokens: int, waiting: Mapping[Hashable, int]) -> None:
        """A step has computed so many tokens of prompts.

        Args:
            num_tokens: how many.
            waiting: the tenants of whom requests wait, and at most how many tokens these need.
        """
        for tenant in waiting:
            self._finish.setdefault(tenant, self.now)
        left = float(num_tokens)
        rising = sorted(finish + waiting.get(tenant, 0) for tenant, finish in self._finish.items())
        for index, finish in enumerate(rising):
            num = len(rising) - index
            each = min(left / num, finish - self.now)
            if each > 0:
                self.now += each
                left -= each * num
        self._finish = {t: finish for t, finish in self._finish.items() if finish > self.now or t in waiting}
