"""Serves the board, the game and the counter from one index page."""

from plait import Plait

from .board import Board
from .counter import PAGES, Counter
from .tictactoe import TicTacToe

app = Plait(Board, TicTacToe, Counter, store="sqlite:///plait-demo.db", static=PAGES)
