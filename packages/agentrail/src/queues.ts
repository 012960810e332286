/** Runs tasks with the same key one after the other, in the order of the calls. */
export class Queues {
  readonly #last = new Map<string, Promise<void>>();

  /** Runs a task after all earlier ones with its key. */
  run<T>(key: string, task: () => Promise<T>): Promise<T> {
    const before = this.#last.get(key) ?? Promise.resolve();
    const result = before.then(task);
    const ended = result.then(
      () => undefined,
      () => undefined,
    );
    this.#last.set(key, ended);
    void ended.then(() => {
      if (this.#last.get(key) === ended) {
        this.#last.delete(key);
      }
    });
    return result;
  }

  /** Waits until no task is left. */
  async idle(): Promise<void> {
    while (this.#last.size > 0) {
      await Promise.all(this.#last.values());
    }
  }
}
