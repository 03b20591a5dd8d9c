"""An app whose code is the one that the file `code` in its folder names: old, broken or new."""

from pathlib import Path
from typing import Any

from plait import Plait, Thread, migrate

CODE = Path("code").read_text()


class OldDoc(Thread[Any]):
    kind = "doc"
    initial_state = staticmethod(lambda: {"text": ""})


class NewDoc(OldDoc):
    kind = "doc"
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def lines(state: Any) -> Any:
        if CODE == "broken" or state["text"] == "odd":
            raise ValueError("this code has a fault")
        return {"text": [state["text"]]}


app = Plait(OldDoc if CODE == "old" else NewDoc)
