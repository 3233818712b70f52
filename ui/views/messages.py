"""Turns as the chat's messages: the running one step by step, those that are over in short."""

from collections.abc import Iterable, Sequence
from textwrap import shorten
from typing import Any

from agent.observe.audit import Escalation
from agent.observe.step_record import Note, Savings, savings, step_title
from ui.session.conversation_view import StepView, TurnView
from ui.views.card import big_number, card_html, rows_html, strip_html
from ui.views.words import counted, fenced, inert, measured_words, milliseconds, plain

Message = dict[str, Any]
MOST_OPTIONS = 4
ASK_AFRESH = "ask afresh"  # the reply of one whose question was taken for a follow-up
OTHER_READING = "other reading "  # and its number from 0: the reply of one who chooses an alternative
FURTHER = "follow-up "  # and its number from 0: the reply of one who goes on from an answer
FIRST_READING, RATHER, BACK = "first reading", "Rather: ", "Back to the first reading"
LONGEST_LABEL, LONGEST_RESULT = 120, 60
NOT_FOUND = "I could not work this out."
SEEN = "I found no other query than those you have seen."
TRY_AGAIN = "try again"  # the reply of one whose question failed
AS_IT_STANDS = "as it stands"  # the reply of one who does not want to be asked back


def messages(turns: Sequence[TurnView]) -> list[Message]:
    """All messages of a conversation: two for each turn, apart from a try that came to no answer and was made once more."""
    seen = [(index, turn) for index, turn in enumerate(turns) if not _is_replaced(turn, turns[index + 1 : index + 2])]
    return [message for index, turn in seen for message in turn_messages(turn, index)]


def _is_replaced(turn: TurnView, later: Sequence[TurnView]) -> bool:
    """Whether a turn without an answer was followed by another try at its question, which stands in its place."""
    return turn.failure is not None and any(
        (each.question, each.evidence) == (turn.question, turn.evidence) for each in later
    )


def turn_messages(turn: TurnView, index: int) -> list[Message]:
    """A turn's messages. `metadata.id` names the turn, so that a click on a message finds it."""
    asked: Message = {"role": "user", "content": _question(turn, index), "metadata": {"id": f"{index}:question"}}
    return [asked, _answer(turn, index) if turn.is_over else _running(turn, index)]


def _question(turn: TurnView, index: int) -> str:
    """What the asker said, to the letter, and the way to say it otherwise."""
    edit = f'<button type="button" class="edit" id="edit-{index}" title="change this question"></button>'
    return f'<span class="said">{inert(turn.said)}</span>{edit if turn.is_over else ""}'


def message_turn(turns: Sequence[TurnView], index: Any) -> int | None:
    """The turn of the message at that place of the chat."""
    place = index[0] if isinstance(index, list | tuple) and index else index
    shown = messages(turns)
    return turn_of(shown[place]) if isinstance(place, int) and 0 <= place < len(shown) else None


def turn_of(message: Message) -> int | None:
    """The turn that a message belongs to."""
    name = str((message.get("metadata") or {}).get("id") or "")
    number = name.partition(":")[0]
    return int(number) if number.isdecimal() else None


def _running(turn: TurnView, index: int) -> Message:
    """One line of the steps, the text as its passes write it, and the rows as soon as they are there."""
    steps = " ".join(map(_state, turn.steps)) or '<span class="now">Reading the question …</span>'
    written = next((step for step in reversed(turn.steps) if step.text.strip()), None)
    parts = [f'<p class="steps">{steps}</p>', _chunks(written) if written else ""]
    if turn.early:
        parts += [rows_html(turn), '<p class="more">Checking other readings …</p>']
    return _message(index, "\n\n".join(filter(None, parts)))


def _state(step: StepView) -> str:
    if step.ahead:
        return f'<span class="now">Waiting for the model: {counted(step.ahead, "other")} first</span>'
    return f'<span class="{"over" if step.record else "now"}">{step_title(step.name)}</span>'


def _chunks(step: StepView) -> str:
    """What a step has written, the text of each pass of the model as one piece; that of the newest flashes."""
    pieces = ["".join(step.spelling.get(token, "") for token in each.text_tokens) for each in step.rounds]
    pieces = pieces if "".join(pieces).strip() == step.text.strip() else [step.text]
    marked = "".join(f"<i>{inert(piece)}</i>" for piece in pieces if piece)
    return f'<pre class="written"><code>{marked}</code></pre>'


def _notes(notes: Iterable[Note]) -> str:
    return "\n\n".join(f"{plain(note.label)}\n{fenced(note.text, note.language)}" for note in notes)


def _figures(record: dict[str, Any]) -> str:
    """A step's figures in one line."""
    if not record["decoder"]:
        return str(record["detail"])
    tokens = f"{counted(record['new_tokens'], 'token')} in {counted(record['target_forwards'], 'pass', 'passes')}"
    return f"{tokens}; {record['cached_tokens']:,} of {record['prompt_tokens']:,} prompt tokens cached"


def _how(turn: TurnView) -> str:
    """What the answer took; below it, what every step found. What was stopped is compared with nothing; small talk has no
    time that anyone asks about."""
    if turn.answer and not turn.sql and not turn.answer["error"] and not turn.unclear:
        return ""
    steps = "\n\n".join(_told(step) for step in turn.steps)
    total = savings(turn.records)
    return _folded(milliseconds(total.wall_ms) if turn.failure else _badge(total), steps) if steps else ""


def _badge(total: Savings) -> str:
    """The time that the answer took, and what fast decoding did for it: passes, which are exact; times only where both were
    measured."""
    if not total.target_forwards:
        return milliseconds(total.wall_ms)
    passes = f"{counted(total.target_forwards, 'pass', 'passes')} of the model instead of {total.plain_forwards:,}"
    told = " · ".join(filter(None, (passes, milliseconds(total.wall_ms), measured_words(total))))
    return f"{strip_html(total.target_forwards, total.plain_forwards)}{told}"


def _told(step: StepView) -> str:
    took = f" · {milliseconds(step.record['wall_ms'])}" if step.record else ""
    figures = f" · {plain(_figures(step.record))}" if step.record and _figures(step.record) else ""
    return f"**{step_title(step.name)}**{took}{figures}\n\n{_notes(step.notes)}".strip()


def _answer(turn: TurnView, index: int) -> Message:
    if turn.failure is not None or turn.answer is None:
        return _failed(turn, index)
    error = turn.answer["error"]
    parts = [f"*{plain(turn.evidence)}*"] if turn.evidence and not turn.reply else []
    parts.append(_chip(turn, index))
    doubt = _doubt(turn, error)
    parts += [doubt, "" if error else big_number(turn), _headline(turn.answer, error, quietly=bool(doubt))]
    parts += [_done(turn), _escalated(turn)]
    if error:
        parts.append(_advice(error))
        if turn.sql:
            parts.append(_folded("SQL", fenced(turn.statement, "sql")))
    else:
        parts += [_by_hand(turn), card_html(turn, index)]
    if _readings(turn):
        which = turn.answer.get("which_reading") if doubt else None
        asks = inert(which["message"]) if which else "Did you mean" if doubt else "It may also mean"
        parts.append(f'<p class="mean">{asks}</p>')
    parts.append(_buttons(turn, index))
    return _message(index, "\n\n".join(part for part in (*parts, _how(turn)) if part))


def _chip(turn: TurnView, index: int) -> str:
    """What the answer goes on from; a click asks the question by itself instead."""
    continues = (turn.answer or {}).get("continues")
    if not continues:
        return ""
    place = [each["value"] for each in offered(turn)].index(ASK_AFRESH)
    hint = "ask this question by itself instead"
    told = f"continues question {int(continues)} ✕"
    return f'<button type="button" class="chip" id="say-{index}-{place}" title="{hint}">{told}</button>'


def _buttons(turn: TurnView, index: int) -> str:
    """What can be clicked under an answer, however many questions ago it was given."""
    buttons = "".join(
        f'<button type="button" class="{"further" if each["value"].startswith(FURTHER) else "say"}" '
        f'id="say-{index}-{place}">{inert(each["label"])}</button>'
        for place, each in enumerate(offered(turn))
        if each["value"] != ASK_AFRESH
    )
    return f'<div class="replies">{buttons}</div>' if buttons else ""


def _doubt(turn: TurnView, error: dict[str, Any] | None) -> str:
    """That an answer is doubtful or was chosen among readings, and why; empty for another."""
    answer, taken = turn.answer or {}, _taken(turn)
    if not answer.get("probably_wrong") and (taken is None or error):
        return ""
    told = _chosen(taken) if taken is not None else "Probably wrong"
    whys = "".join(f"<li>{inert(why)}</li>" for why in answer["doubts"])
    why = f'<ul class="doubts">{whys}</ul>' if whys else ""
    return f'<div class="doubt"><b>{told}</b>{why}</div>'


def _done(turn: TurnView) -> str:
    """What the query did, in one line: by it a person who reads no SQL finds a wrong answer."""
    done = ((turn.answer or {}).get("shown") or {}).get("done")
    return f'<p class="done">{inert(done)}</p>' if done and not (turn.answer or {}).get("error") else ""


def _by_hand(turn: TurnView) -> str:
    """That the panel shows the rows of other SQL than the answer's."""
    if turn.ran is None or turn.ran.error is not None:
        return ""
    rows = counted(turn.ran.row_count, "row")
    return f'<p class="mean">You ran other SQL for this answer: the panel shows its {rows}. Below is the answer itself.</p>'


def _escalated(turn: TurnView) -> str:
    """Which larger model was asked, and what that cost."""
    escalated = (turn.answer or {}).get("escalated")
    return f'<p class="done">{inert(Escalation(**escalated).in_words())}</p>' if escalated else ""


_SEEN = "a query that you have seen"
_FAILED = {
    "refused": "Only reading is allowed here, so I did not run that.",
    "timeout": "The query took too long.",
    "memory": "The query needs more memory than it may use.",
    "connection": "The database cannot be reached.",
}


def _headline(answer: dict[str, Any], error: dict[str, Any] | None, quietly: bool) -> str:
    """The answer in bold, unless it is doubtful; where none was found one plain sentence, below which what the engine said is
    folded."""
    if error is None or error["kind"] in ("unclear", "unsure"):
        return plain(answer["answer"]) if quietly else f"**{plain(answer['answer'])}**"
    told = SEEN if _SEEN in error["message"] else _FAILED.get(error["kind"], NOT_FOUND)
    return f"**{told}**\n\n{_folded('Details', fenced(error['message']))}"


def offered(turn: TurnView) -> list[dict[str, str]]:
    """What can be clicked under an answer, and the reply that each click gives."""
    if turn.answer is None:
        return [{"label": "Try again", "value": TRY_AGAIN}] if turn.failure else []
    error, continues = turn.answer["error"], turn.answer.get("continues")
    afresh = [{"label": f"does not continue question {int(continues)}", "value": ASK_AFRESH}] if continues else []
    if turn.unclear:
        return _asked_back(turn) + afresh  # there is enough to choose from
    others = [{"label": label, "value": value} for label, value, _ in _readings(turn)]
    further = [
        {"label": each["label"], "value": f"{FURTHER}{place}"}
        for place, each in enumerate(turn.answer.get("follow_ups") or ())
    ]
    found = _options(turn.answer) + others + further + afresh
    if error and error["kind"] != "refused" and not found:
        return [{"label": "Try again", "value": TRY_AGAIN}]
    return found


def _chosen(other: dict[str, Any]) -> str:
    """What is known of a reading that the asker took."""
    sure = other.get("confidence")
    known = "" if sure is None else f" · right in about {100 * sure:.0f} of 100"
    return f"You chose this reading{known}"


def _failed(turn: TurnView, index: int) -> Message:
    """A turn without an answer: one sentence, whatever is technical folded, and another try."""
    told, _, details = (turn.failure.message if turn.failure else "No answer.").partition("\n")
    folded = _folded("Details", fenced(details)) if details else ""
    return _message(index, "\n\n".join(filter(None, (f"**{plain(told)}**", folded, _buttons(turn, index), _how(turn)))))


def chosen_label(turn: TurnView, chosen: str) -> str:
    """What a reply says that was clicked under a turn; itself if the turn does not offer it."""
    return next((each["label"] for each in offered(turn) if each["value"] == chosen), chosen)


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _message(index: int, content: str) -> Message:
    return {"role": "assistant", "content": content, "metadata": {"id": f"{index}:answer"}}


_ADVICE = {
    "unclear": "Choose one, or say it in other words.",
    "unsure": "Choose a reading to see its rows, or say it in other words.",
    "refused": "Only reading is allowed here: ask for what the data says, or change the SQL in the SQL tab.",
    "timeout": "Ask for less, or give queries more time in the settings.",
    "memory": "Ask for fewer rows or columns.",
    "connection": "Open the database again.",
}


def _advice(error: dict[str, Any]) -> str:
    general = "Say it in other words, name the table or column, or correct the SQL in the SQL tab and run it."
    return _ADVICE.get(error["kind"], general)


def _asked_back(turn: TurnView) -> list[dict[str, str]]:
    """What an unclear question may mean, and the way past that."""
    if turn.unclear is None:
        return []
    meanings = [{"label": label, "value": evidence} for label, evidence in turn.unclear.options.items()]
    return [*meanings, {"label": "Answer it as it stands", "value": AS_IT_STANDS}]


def _options(answer: dict[str, Any]) -> list[dict[str, str]]:
    """What an unknown or ambiguous name may have meant, as replies that can be clicked; none for an answer with rows."""
    errors = [attempt["error"] for attempt in answer["attempts"] if attempt["error"]] if answer["error"] else []
    asked = next((error for error in reversed([*errors, answer["error"] or {}]) if error.get("candidates")), None)
    if asked is None or not asked.get("name"):
        return []
    texts = [f"{asked['name']} means {name}" for name in asked["candidates"][:MOST_OPTIONS]]
    return [{"label": text, "value": text} for text in texts]


def _first(turn: TurnView) -> TurnView:
    """The doubtful turn among whose readings this one was chosen; the turn itself where it was not."""
    if not turn.reply.startswith((RATHER, BACK)):
        return turn
    before = turn.before
    while before is not None:  # a reading may be taken after other questions
        first = _first(before) if before.question == turn.question else before
        if turn.reply in map(_label, _others(first)) or (turn.reply == BACK and _others(first)):
            return first
        before = before.before
    return turn


def _others(turn: TurnView) -> list[dict[str, Any]]:
    return list((turn.answer or {}).get("alternatives") or ())


def _label(other: dict[str, Any]) -> str:
    """By what differs and by its result; of an older record, by what it does."""
    told = shorten(other.get("differs") or other["words"] or other["sql"], LONGEST_LABEL, placeholder=" …")
    result = shorten(other.get("result") or "", LONGEST_RESULT, placeholder=" …")
    return f"{RATHER}{told}{f' → {result}' if result else ''}"


def _readings(turn: TurnView) -> list[tuple[str, str, str]]:
    """The other readings of a doubtful answer, also of one that was chosen among them: (label, reply, SQL)."""
    first = _first(turn)
    found = [
        (_label(other), f"{OTHER_READING}{place}", str(other["sql"]))
        for place, other in enumerate(_others(first))
        if other["sql"] != turn.sql
    ]
    return [(BACK, FIRST_READING, first.sql), *found] if first.sql and turn.sql != first.sql else found


def _taken(turn: TurnView) -> dict[str, Any] | None:
    """The reading that the asker took among those of an earlier turn; its confidence may be known."""
    first = _first(turn)
    if first is turn or turn.answer is None:
        return None
    return next((other for other in _others(first) if other["sql"] == turn.sql), first.answer)


def chosen_reading(turn: TurnView, reply: str) -> str:
    """The SQL of the reading or follow-up that a reply chooses; empty if the turn does not offer it."""
    further = enumerate((turn.answer or {}).get("follow_ups") or ())
    found = {f"{FURTHER}{place}": str(each["sql"]) for place, each in further}
    return next((sql for _, value, sql in _readings(turn) if value == reply), found.get(reply, ""))
