"""Writes what a page of `useChat` asks for, in a turn of its client: questions, edits, and answers to calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Final

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.rpc import Arguments, Method
from plait.errors import Conflict, InvalidArguments, NotFound
from plait.parts.files.file import Upload
from plait.parts.files.thread_files import ThreadFiles
from plait.parts.messages.message import Message
from plait.parts.messages.thread_messages import ThreadMessages
from plait.web.http.chat.body import Body, DataFile, Question
from plait.web.http.chat.parts import Approval
from plait.web.http.chat.rendering import ANSWER, is_question, split
from plait.web.http.chat.viewer import read_messages

__all__ = ["Writer"]

Call = Callable[[Actor, Method, Arguments, Connection], Awaitable[Any]]

_LONGEST_NAME: Final = 100


class Writer:
    """Writes for one request."""

    def __init__(
        self, actor: Actor, connection: Connection, messages: ThreadMessages, files: ThreadFiles | None, call: Call
    ) -> None:
        self._actor = actor
        self._connection = connection
        self._messages = messages
        self._files = files
        # Calls a method in a turn of the client.
        self._call_method = call

    async def ask(self, body: Body, question: Question) -> str:
        """Queue, edit or answer a question again, unless that was done before; return its id.

        Raises Conflict if its id is that of another message, Forbidden, NotFound and InvalidArguments.
        """
        id, messages = body.message.id, self._messages
        found = await self._find(id)
        if body.trigger == "regenerate-message":
            return await self._answer_again(id, found)
        if is_new := found is None:
            await self._call(partial(self._queue, id, question, await self._decode(question)))
            found = await messages.get(id)
        is_own = found is not None and found.role == "user" and found.sender in (None, self._connection.user)
        if found is not None and is_own and (is_new or await self._is_same(found, question)):
            return found.id
        if found is None or body.message_id != id:
            raise Conflict(f"there is another message with the id {id}: to edit it, send its id as messageId")
        edited: Message = await self._call(partial(self._edit, found, question, await self._decode(question)))
        return edited.id

    async def approve(self, body: Body) -> str:
        """Answer the calls that the page has approved or refused and that wait for it; return the question's id.

        Raises NotFound if there is no such question, and InvalidArguments.
        """
        answers: dict[str, Approval] = {}
        for number, each in enumerate(body.message.parts):
            if each.state == "approval-responded":
                match each.approval:
                    case Approval(approved=bool()) if isinstance(each.tool_call_id, str):
                        answers[each.tool_call_id] = each.approval
                    case _:
                        raise body.place.inside("parts", number, "approval").refuse("it has no answer to a call")
        if not answers:
            raise body.place.inside("parts").refuse("an assistant's message is sent to approve its calls, and none is")
        question = body.message.id.removesuffix(ANSWER)
        if await self._messages.get(question) is None:
            raise NotFound(f"there is no message {question}")

        async def approve(_: Any) -> None:
            for call, answer in answers.items():
                await self._messages.approve(call, answer.approved is True, answer.reason)

        await self._call(approve)
        return question

    # Inside

    async def _find(self, id: str) -> Message | None:
        """Return a message, or the shown version of a question: a page that edits one keeps its id."""
        found = await self._messages.get(id)
        if found is None or self._messages.shows(found):
            return found
        return next(filter(self._messages.shows, await self._messages.siblings(id)), found)

    async def _answer_again(self, id: str, found: Message | None) -> str:
        if found is None:
            raise NotFound(f"there is no message {id}")
        _, shown, _ = await read_messages(self._messages.feed, None, is_question)
        groups, waiting = split(shown)
        # An answer that is being made is the one that another page has asked for.
        is_asked = any(each is not None and each.id == found.id for each in (groups[-1].question, *waiting))
        if self._messages.status not in ("running", "waiting") or not is_asked:

            async def answer_again(_: Any) -> None:
                await self._messages.check_own(found.id)
                await self._messages.regenerate(found.id)

            await self._call(answer_again)
        return found.id

    async def _is_same(self, found: Message, question: Question) -> bool:
        """Whether a message is a question, as it was or as a hook has changed it."""
        if (found.content or "") == question.text:
            return True

        async def preview(_: Any) -> str | None:
            return self._messages.preview(question.text)

        content: str | None = await self._call(preview)
        return found.content == content

    async def _decode(self, question: Question) -> list[bytes]:
        if question.files and self._files is None:
            raise question.files[0].place.refuse("these threads have no files")
        return [await asyncio.to_thread(each.decode) for each in question.files]

    async def _queue(self, id: str, question: Question, contents: Sequence[bytes], thread: Any) -> None:
        uploads, user = await self._receive(contents), self._connection.user
        with thread.transaction():
            self._messages.queue(
                question.text,
                id=id,
                sender=self._connection,
                metadata={} if user is None else {"user": user},
                attachments=self._attach(question, uploads),
            )

    async def _edit(self, found: Message, question: Question, contents: Sequence[bytes], _: object) -> Message:
        await self._messages.check_own(found.id)
        attachments = self._attach(question, await self._receive(contents)) or None
        return await self._messages.edit(found.id, question.text, attachments=attachments, sender=self._connection)

    async def _receive(self, contents: Sequence[bytes]) -> list[Upload]:
        return [await self._files.receive(each) for each in contents] if self._files else []

    def _attach(self, question: Question, uploads: Sequence[Upload]) -> list[dict[str, Any]]:
        """Give the files of a question their paths, and return its attachments."""
        return [*question.attachments, *map(self._put, question.files, uploads)]

    def _put(self, file: DataFile, upload: Upload) -> dict[str, Any]:
        assert self._files is not None
        name = "".join("-" if each in "/\\" or not each.isprintable() else each for each in file.name)[-_LONGEST_NAME:]
        path = f"attachments/{token_hex(6)}/{name.strip(' .') or 'file'}"
        try:
            found = self._files.put(path, upload, mime=file.mime).value
        except ValueError as error:
            raise file.place.refuse(str(error)) from None
        return {"path": found.path, "name": name or found.name, "mime": found.mime}

    async def _call(self, work: Callable[[Any], Any]) -> Any:
        """Do something in a turn of the client, so that a new thread is its user's, and return the durable result."""

        async def checked(thread: Any) -> Any:
            try:
                return await work(thread)
            except (ValueError, TypeError) as error:
                raise InvalidArguments(str(error)) from error

        method = Method("chat", "chat", checked, concurrent=True)
        return await self._call_method(self._actor, method, ([], {}), self._connection)
