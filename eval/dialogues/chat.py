"""Holds a dialogue's conversation turn by turn. Scores nothing."""

from agent.conversation.conversation import Conversation
from agent.graph.readings import entity_of
from agent.graph.toolbox import Toolbox
from eval.dialogues.read import Dialogue
from eval.predict.agent_predict import predicted, seeded
from eval.predict.record import Prediction
from tools.result import Result


class DialogueChat:
    """The conversation of one dialogue. Callers must pass all turns in order, by their number from 1, so that a question's
    number in the conversation is that of its turn."""

    def __init__(self, dialogue: Dialogue, toolbox: Toolbox) -> None:
        self._dialogue, self._options = dialogue, toolbox.options
        self._conversation = Conversation(toolbox)

    def ask(self, number: int) -> Prediction:
        """The agent's own answer, which stays in the conversation if its SQL ran."""
        self._conversation.toolbox.options = seeded(self._options, self._dialogue.turn_id(number))
        return predicted(lambda: self._conversation.ask(self._dialogue.turns[number - 1].question))

    def give(self, number: int) -> None:
        """Add the turn to the conversation with its gold query. A turn without one is asked, since it may be "start over"."""
        turn = self._dialogue.turns[number - 1]
        if turn.sql is None:
            self.ask(number)
        else:
            result = self._conversation.toolbox.database.execute(turn.sql)
            entity = entity_of(result.rows, len(result.rows)) if isinstance(result, Result) else None
            self._conversation.remember(turn.question, turn.sql, entity=entity)
