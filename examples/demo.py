"""Serves the pad, the board, the game and the counter from one index page."""

from plait import Plait

from .board import Board, BoardMemory
from .counter import PAGES, Counter
from .pad import Pad
from .tictactoe import TicTacToe

app = Plait(Pad, Board, BoardMemory, TicTacToe, Counter, store="sqlite:///plait-demo.db", static=PAGES)
