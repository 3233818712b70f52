"""Patterns that mark a question as a follow-up: connectives, demonstratives, operations on a result."""

import re

from tools.linking.word_forms import word_set


def _words(*alternatives: str) -> re.Pattern[str]:
    """A case-insensitive pattern of the alternatives."""
    return re.compile("|".join(alternatives), re.IGNORECASE)


_LED = r"(?:(?:ok(?:ay)?|so|please|now|let's|let us|can we|i want to|i'd like to)[,\s]+)*"
_ALL_OF_IT = r"(?:that|this|it|all(?: (?:of )?that)?|everything|(?:the|those|these) \w+)"
RESET = _words(
    rf"\s*(?:{_LED}"
    r"(?:start(?:ing)? (?:over|again|afresh|anew)|begin again|(?:new|another|different) (?:question|topic|subject)"
    rf"|(?:never ?mind|forget)(?: (?:about )?{_ALL_OF_IT})?"
    r"|change of (?:topic|subject)|clear the (?:chat|conversation|context)|reset)\b[\s.,:;!-]*)+"
)
POLITE = _words(
    r"\s*(?:(?:please|thanks|thank you|great|good|nice|hmm+|ok|okay|well|no|yes|can you|could you|would you|will you"
    r"|sorry|i meant?|i want to know|i'd like to know|tell me|do you know|let me know)\b[\s,.:!]*)+"
)
CONNECTIVE = _words(r"[\s.…]*(?:and|but|or|so|then|now|next|also|plus|what about|how about|what if|again)\b[\s,]*")
ABOUT = _words(r"[\s.…]*(?:(?:and|but|so|ok|now)[\s,]+)?(?:what|how) about\b")
GOING_BACK = _words(r"\b(?:go(?:ing)? |return(?:ing)? |coming )?back (?:to|at)\b", r"\breturn(?:ing)? to\b")
PREPOSITION = _words(
    r"(?:in|for|from|by|per|with|without|of|at|on|under|over|above|below|since|before|after|between)\b"
)

# Words with which a complete question begins, and which a fragment lacks.
QUESTION_WORDS = word_set("how what which who whose whom where when why")
ASKING_WORDS = QUESTION_WORDS | word_set(
    "is are was were do does did has have can list show find give return count tell display get compute calculate name report "
    "select retrieve state identify determine provide describe print fetch see"
)
# Verbs that arrange what is named after them, or else the former result; and verbs that change a result.
ARRANGING = _words(r"(?:re-?)?(?:sort|order|rank|arrange|group)(?:ed|ing)?\b")
CHANGING = _words(
    r"(?:split|break|limit|restrict|narrow|filter|exclude|include|add|remove|drop|keep|leave|skip|ignore|take|use|cut|reverse"
    r"|repeat|make)(?:ed|ing)?\b"
)
_COUNT = r"(?:\d+|one|two|three|four|five|six|seven|eight|nine|ten)"
OF_A_RESULT = _words(
    r"(?:just|only|merely)\b|(?:the )?same\b|(?:the )?(?:others?|rest)\b|(?:also|too)\b|instead\b",
    rf"(?:the )?(?:top|first|last|next) {_COUNT}\b[\s?.!]*$",
)
ENDING = _words(r"\b(?:instead|too|as well|again|also)[\s?.!]*$")
ORDER = _words(r"^(?:[\w-]+ ){1,3}first(?:,? please)?[\s?.!]*$")

# Pronouns and demonstratives. In "how many albums do they have", the noun before the pronoun is not its antecedent.
PRONOUNS = word_set("they them their theirs it its he she his her hers him these those themselves")
POSSESSIVE = word_set("their theirs its his her hers themselves")
POINTING_SUBJECT = _words(
    r"(?:how many|how much|which|what|where|when|why|who|whose|in which|on which|for which)\b(?:\s+[\w'-]+){0,5}?\s+"
    r"(?:do|does|did|is|are|was|were|has|have|had|can|could|will|would)\s+(?:they|it|he|she|these|those|that|this)\b"
)
ONES = _words(r"\b(?:which|the|that|this|another|other|last|first|these|those) ones?\b")
THAT = _words(
    r"\b(?:of|by|from|in|for|with|to|at|on|than|does|did|do|is|are|was|split|break|order|sort|group|show|about)\s+(?:that|this)"
    r"(?!\s+(?:of|year|month|week|quarter|moment|time)\b)(?:\s+(?P<noun>[\w'-]+)|[\s?.!]*$)",
    r"^[\s.…]*(?:that|this)\b",
)
THERE = _words(
    r"\b(?:(?:from|in|at|to|of) there|that (?:much|many))\b|(?<!is)(?<!are)(?<!was)(?<!were) there(?=[?.!]|\s*$)"
)
CLAUSE_VERBS = word_set("is are was were has have had do does did can will the a an there")
# "Those who have ...": the clause after the pronoun says what is meant, if it is long enough.
CATAPHORIC = _words(r"\s+(?:who|whose|which|that|with|without|having|in|of|from)\b(?=.{36})")

# In a question of one clause, the noun before the pronoun is what is asked for: "how many are in each of those?"
QUESTION = _words(
    r"(?:(?:show|list|tell|give)(?: me)? )?(?:how many|how much|which|what|who|where|when|on which|in which)\b"
)
CLAUSE_END = _words(r"[,;.:?]|\b(?:and|who|whose|which|that|with|where|when|while|if|but|than|as)\b")
SUPERLATIVE = _words(
    r"(?:the |is |has |have )*(?:\w+est|most|least|best|worst|more|fewer|less|\w+er)(?: ones?)?[\s?.!]*$"
)
OBJECT_END = _words(r"\b(?:by|in|to|on|from|according|with|where|without)\b")
DEFINITE = _words(r"\b(?:those|these|that|the)\b")
