"""Sub-agents: several agents work from one context at once, and a lead reads what they wrote.

The context, a system message and a document, is computed once and kept. Every agent is a branch of it with a task of
its own; they run as asyncio tasks, in the same steps, each in two turns: a draft and a revision. The lead is one more
branch of the same context, which gets all their results.

    python examples/sub_agents.py --document notes.txt
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from mainstem import LLM, Branch, SamplingParams
from mainstem.engine import ReplyResult

SYSTEM = "You are one of several assistants who read the same report. Answer in a few plain sentences."
REPORT = """Report on the mill weir, spring survey.

The weir was built in 1911 to feed the mill race and has not been used since the mill closed. The crest has settled by
a hand's breadth at the left bank, where water now passes beside the masonry. Two of the five sluice boards are rotten
and cannot be lifted; the others move, with difficulty. The walkway is safe for one person at a time and its rail is
loose.

Fish were counted on three mornings in April. Trout gather below the weir and do not pass it, except at high water.
Above it the river is slow and warm for a kilometre, and the gravel is covered with silt as deep as a finger is long.
The villagers swim there in summer and want the pool to stay. The farmer on the left bank wants the water lower, since
his lower meadow has been wet since the crest settled.

Three ways are open. The weir can be repaired, which keeps the pool and the silt. It can be lowered by half a metre and
given a ramp of stones, which lets fish pass and keeps a smaller pool. It can be taken out, which frees the gravel but
ends the pool, and nobody knows how far upstream the bank would then wash out. The county pays two thirds of a ramp or
of a removal, and nothing towards a repair. A decision is needed before the low water of August, when work can be done.
"""
TASKS = {
    "safety": "What in the report is a danger to people?",
    "river": "What does the report say about fish and gravel?",
    "people": "Who wants what, according to the report?",
    "money": "Which of the three ways does the county pay for?",
    "doubts": "What does the report say that nobody knows?",
}
PLACE = "(here the reply stands)"
REVISE = "Say it again in one sentence."
LEAD = "These are the assistants' findings.\n{findings}\nName the way that fits them best, and why."


class Turns:
    """What has to be appended to a branch for the next message, whatever the model's chat template is.

    Attributes:
        messages: the conversation that the context is made of.
    """

    def __init__(self, llm: LLM, document: str) -> None:
        self.messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Read this.\n\n{document}"},
            {"role": "assistant", "content": "I have read it."},
        ]
        self._llm = llm
        self._shared = llm.tokenizer.render_chat(self.messages, add_generation_prompt=False)

    def first(self, content: str) -> str:
        """The user's message after the context, up to where the reply begins."""
        asked = [*self.messages, {"role": "user", "content": content}]
        return self._llm.tokenizer.render_chat(asked).removeprefix(self._shared)

    def next(self, content: str, reply: ReplyResult) -> str:
        """The user's message after a reply, whose turn is ended first if it was cut off."""
        said = [*self.messages, {"role": "user", "content": "?"}, {"role": "assistant", "content": PLACE}]
        rendered = self._llm.tokenizer.render_chat([*said, {"role": "user", "content": content}])
        end_of_turn = reply.token_ids[-1:] if reply.finish_reason == "stop" else []
        there_already = self._llm.tokenizer.decode(end_of_turn, skip_special_tokens=False)
        return rendered.rpartition(PLACE)[2].removeprefix(there_already)


async def agent(context: Branch, turns: Turns, name: str, task: str, params: SamplingParams) -> str:
    """Draft, revise, and return the revision."""
    with context.fork().append(turns.first(task)) as branch:
        draft = await branch.agenerate(params)
        branch.append(turns.next(REVISE, draft))
        revision = await branch.agenerate(params)
    text = " ".join(revision.text.split())
    print(f"{name}: {text}")
    return f"{name}: {text}"


async def work(llm: LLM, document: str, params: SamplingParams) -> str:
    """All agents at once, then the lead."""
    turns = Turns(llm, document)
    with llm.context(turns.messages, add_generation_prompt=False, prefill=False) as context:
        await context.aprefill()
        findings = await asyncio.gather(*(agent(context, turns, *task, params) for task in TASKS.items()))
        with context.fork().append(turns.first(LEAD.format(findings="\n".join(findings)))) as lead:
            return "".join([output.text async for output in lead.astream(params)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the agents and the lead, and say what they shared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="name or path of the model")
    parser.add_argument("--document", type=Path, help="what they read; by default a report on a weir")
    parser.add_argument("--max-tokens", type=int, default=48, help="most tokens of a reply")
    options = parser.parse_args(arguments)
    document = REPORT if options.document is None else options.document.read_text(encoding="utf-8")
    with LLM(options.model) as llm:
        conclusion = asyncio.run(work(llm, document, SamplingParams(max_tokens=options.max_tokens, temperature=0)))
        print(f"lead: {' '.join(conclusion.split())}\n")
        print(llm.sharing())


if __name__ == "__main__":
    main()
