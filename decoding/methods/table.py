"""The table of decoding methods. It imports neither them nor torch, so that adding one costs nothing until it is used.

A method of the project is a file in `decoding/methods/` and a line in `METHODS`; one from elsewhere calls `register_method`.
The command line, the benchmark and the losslessness test read that table. What a draft head needs in addition is in
`decoding.heads.kinds`.
"""

from decoding.heads.kinds import KINDS, HeadKind

METHODS: dict[str, str] = {
    "plain": "decoding.methods.plain:Plain",
    "jacobi": "decoding.methods.jacobi.jacobi:Jacobi",
    "jacobi_forcing": "decoding.methods.jacobi.jacobi_forcing:JacobiForcing",
    "adaptive": "decoding.methods.jacobi.adaptive:Adaptive",
    "lookahead": "decoding.methods.jacobi.lookahead:Lookahead",
    "mask_tokens": "decoding.methods.jacobi.mask_tokens:MaskTokens",
    "prompt_lookup": "decoding.methods.prompt_lookup:PromptLookup",
    "draft_model": "decoding.methods.drafters.draft_model:DraftModel",
    "medusa": "decoding.methods.drafters.medusa:Medusa",
    "eagle3": "decoding.methods.drafters.eagle3:Eagle3",
    "falcon": "decoding.methods.drafters.falcon:Falcon",
    "dflash": "decoding.methods.blocks.dflash:DFlash",
    "ddtree": "decoding.methods.blocks.ddtree:DDTree",
    "domino": "decoding.methods.blocks.domino:Domino",
    "jetspec": "decoding.methods.blocks.jetspec:JetSpec",
    "path_tree": "decoding.methods.blocks.path_tree:PathTree",
    "cascade": "decoding.methods.cascade:Cascade",
}


def register_method(name: str, method: str, head: HeadKind | None = None) -> None:
    """Register a decoding method under a name, together with the kind of its draft head if it has one of its own.

    `method` names its class as "module:Class". `head` is registered under the same name, which is the class's `kind`.
    Raises ValueError for a name that is no identifier or is taken.
    """
    if not name.isidentifier() or METHODS.get(name, method) != method:
        raise ValueError(f"a decoding method cannot be called {name!r}: choose a new name of letters, digits and _")
    METHODS[name] = method
    if head is not None:
        KINDS[name] = head
