/** One line at the bottom that says what has just happened. */

import { useCallback, useEffect, useState } from "react";

import { Icon } from "./Icon.tsx";

export interface Notice {
  text: string;
  isError?: boolean;
  action?: { label: string; run: () => void };
}

export type Notify = (notice: Notice) => void;

const DURATION = 8_000;

export function useNotice(): [Notice | undefined, Notify, () => void] {
  const [notice, setNotice] = useState<Notice>();
  const dismiss = useCallback(() => setNotice(undefined), []);
  useEffect(() => {
    if (!notice) return;
    const timer = setTimeout(dismiss, DURATION);
    return () => clearTimeout(timer);
  }, [notice, dismiss]);
  return [notice, setNotice, dismiss];
}

export function NoticeLine({ notice, onDismiss }: { notice: Notice | undefined; onDismiss: () => void }) {
  // The regions stay on the page, as a screen reader only announces a text in a region that was empty before.
  return (
    <div className="notices">
      <div role="alert">{notice?.isError && <NoticeBox notice={notice} onDismiss={onDismiss} />}</div>
      <div role="status">{notice && !notice.isError && <NoticeBox notice={notice} onDismiss={onDismiss} />}</div>
    </div>
  );
}

function NoticeBox({ notice: { text, isError, action }, onDismiss }: { notice: Notice; onDismiss: () => void }) {
  return (
    <div className="notice" data-error={isError}>
      <span>{text}</span>
      {action && (
        <button
          className="notice-action"
          onClick={() => {
            onDismiss();
            action.run();
          }}
        >
          {action.label}
        </button>
      )}
      <button className="icon-button" aria-label="Dismiss" onClick={onDismiss}>
        <Icon name="close" />
      </button>
    </div>
  );
}
