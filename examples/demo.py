"""Serves the assistant, the chat, the pad, the board, two games and the counter from one index page."""

from secrets import token_hex

from plait import Limits, Plait

from .assistant import MAX_WAITING, Assistant, add_assistant
from .board import Board, BoardMemory
from .cards import CardGame, authenticate
from .chat import Chat, add_chat
from .counter import PAGES, Counter
from .pad import Pad
from .tictactoe import TicTacToe

app = Plait(
    *(Assistant, Chat, Pad, Board, BoardMemory, TicTacToe, CardGame, Counter),
    store="sqlite:///plait-demo.db",
    static=PAGES,
    authenticate=authenticate,
    # The pages without a key are one user, whose questions to the assistant wait together.
    limits=Limits(waiting_runs=MAX_WAITING),
    # The pages choose the names of threads, so the secret for signed ids need not be kept.
    secret=token_hex(),
)
add_assistant(app)
add_chat(app)
