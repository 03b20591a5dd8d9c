"""Serves the assistant, the chat, the desk, the pad, the board, two games and the counter from one index page."""

from importlib import import_module
from importlib.util import find_spec
from secrets import token_hex

from plait import Plait, Principal, ThreadKey

from .assistant import Assistant, add_assistant
from .board import Board, BoardMemory
from .cards import CardGame, authenticate
from .chat import Chat, add_chat
from .counter import PAGES, Counter
from .pad import Pad
from .tictactoe import TicTacToe

# The kinds in which anybody may do this, if not in all; to approve is also to stop an answer for another person.
ONLY = {"approve": ("assistant", "desk"), "list": ("tic-tac-toe", "card-game"), "destroy": ()}
# The desk needs plait[execution].
desk = import_module(".desk", __package__) if find_spec("pydantic_ai") else None


def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    """Return whether anybody may do this."""
    return action not in ONLY or thread.kind in ONLY[action]


app = Plait(
    *(Assistant, Chat, Pad, Board, BoardMemory, TicTacToe, CardGame, Counter),
    *([desk.Desk] if desk else []),
    store="sqlite:///plait-demo.db",
    static=PAGES,
    authenticate=authenticate,
    authorize=authorize,
    # The pages choose the names of threads, so the secret for signed ids need not be kept.
    secret=token_hex(),
)
add_assistant(app)
add_chat(app)
if desk:
    desk.add_desk(app)
