"""Serves the assistant, the chat, the pad, the board, two games and the counter from one index page."""

from secrets import token_hex

from plait import Plait, Principal, ThreadKey

from .assistant import Assistant, add_assistant
from .board import Board, BoardMemory
from .cards import CardGame, authenticate
from .chat import Chat, add_chat
from .counter import PAGES, Counter
from .pad import Pad
from .tictactoe import TicTacToe


def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    """Return whether anybody may do this; the right to approve is also that to stop an answer for another person."""
    return action != "destroy" and (action != "approve" or thread.kind == "assistant")


app = Plait(
    *(Assistant, Chat, Pad, Board, BoardMemory, TicTacToe, CardGame, Counter),
    store="sqlite:///plait-demo.db",
    static=PAGES,
    authenticate=authenticate,
    authorize=authorize,
    # The pages choose the names of threads, so the secret for signed ids need not be kept.
    secret=token_hex(),
)
add_assistant(app)
add_chat(app)
