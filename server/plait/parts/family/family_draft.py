"""The items of a run for the family of its thread, until they are committed."""

from collections.abc import Callable, Sequence

from plait.parts.family.rows import Child
from plait.parts.family.sending import Post
from plait.state.commit import Commit

__all__ = ["FamilyDraft"]


class FamilyDraft:
    """The items that a run writes. `post` stores items."""

    is_ready = True

    def __init__(self, post: Callable[[Sequence[Post]], Commit]) -> None:
        self._post = post
        self._posts: list[Post] = []
        self._is_dropped = False

    @property
    def children(self) -> dict[str, Child]:
        """The children that the run has spawned, by reference."""
        return {post.to: post.child for post in self._posts if post.child is not None}

    def add(self, post: Post) -> None:
        """Add an item."""
        self._posts.append(post)

    # Called by the stage

    @property
    def is_dirty(self) -> bool:
        """Whether there are items to store."""
        return bool(self._posts)

    async def prepare(self) -> None:
        """Do nothing, as nothing must be read."""

    def write(self) -> None:
        """Store the items; if that is rolled back, they are staged again."""
        posts, self._posts = self._posts, []
        try:
            commit = self._post(posts)
        except BaseException:
            self._posts = posts
            raise
        take_back = commit.undo

        def undo() -> None:
            if take_back is not None:
                take_back()
            if not self._is_dropped:
                self._posts = [*posts, *self._posts]

        commit.undo = undo

    def drop(self) -> None:
        """Forget the items."""
        self._posts, self._is_dropped = [], True
