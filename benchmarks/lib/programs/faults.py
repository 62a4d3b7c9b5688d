"""Programs that end badly or do something unusual: `python faults.py NAME` calls the function of that name."""

import os
import signal
import subprocess
import sys
import threading
import time

STEPS = 20


def train(steps=STEPS, middle=None, items=None, **loader):
    """Train a tiny model; `middle` is called before the update of half the steps."""
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(items or Items(8 * steps), batch_size=8, **loader)
    for number, batch in enumerate(data, 1):
        loss = model(batch).square().mean()
        loss.backward()
        if number == steps // 2 + 1 and middle is not None:
            middle()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.9f}", flush=True)


class Items:
    """A data set that may fail."""

    def __init__(self, count, broken=None):
        self.count, self.broken = count, broken

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        import torch

        if number == self.broken:
            raise KeyError(f"item {number} is broken")
        return torch.full((4,), number / self.count)


def raises():
    print("before")
    raise ValueError("a fault of the program")


def exits():
    print("before")
    sys.exit(7)


def exits_with_text():
    sys.exit("this is the reason")


def exits_at_once():
    sys.stdout.write("never seen: the buffer is not written")
    os.write(1, b"seen")
    os._exit(5)


def kills_itself():
    print("before", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def breaks_off():
    os.abort()


def reads_nowhere():
    import ctypes

    print("before", flush=True)
    ctypes.string_at(0)


def hangs():
    print("begun", flush=True)
    threading.Event().wait()


def runs_out_of_memory():
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    print(len(bytearray(4 << 30)))


def recurses():
    def depth(number):
        try:
            return depth(number + 1)
        except RecursionError:
            return number

    print(depth(0))
    # This one is not caught.
    raises_deeply(0)


def raises_deeply(number):
    raises_deeply(number + 1)


def forks():
    child = os.fork()
    if not child:
        print("child", flush=True)
        os._exit(3)
    print("parent", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def executes_itself():
    print("first", len(sys.argv), flush=True)
    if len(sys.argv) == 2:
        os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
    print("second")


def spawns():
    import multiprocessing

    for method in ("spawn", "fork", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=print, args=(method,), kwargs={"flush": True})
        process.start()
        process.join()
        print(process.exitcode, flush=True)


def changes_folder():
    os.mkdir("below")
    os.chdir("below")
    with open("made.txt", "w") as file:
        file.write(os.path.basename(os.getcwd()))
    print(os.listdir(".."), os.listdir("."))


def loses_its_folder():
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
    print(subprocess.run([sys.executable, "-c", "print('child')"], check=False).returncode)


def replaces_output():
    import io

    kept, sys.stdout = sys.stdout, io.StringIO()
    print("not shown")
    kept.write(sys.stdout.getvalue().upper())
    sys.stdout = None
    sys.stderr = open("errors.txt", "w")
    print("nowhere")


def closes_output():
    print("before", flush=True)
    os.close(1)
    try:
        print("after", flush=True)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        os._exit(1)


def redirects_output():
    os.dup2(2, 1)
    print("on the other", flush=True)


def writes_bytes():
    for number in range(300):
        sys.stdout.buffer.write(bytes(range(256)) * 128)
        if number % 30 == 0:
            sys.stderr.buffer.write(bytes([255, 0, 27, 13]) * number)
    sys.stdout.buffer.write(b"no end of line")


def reads_input():
    sys.stdout.write("".join(line[::-1] for line in sys.stdin))


def looks_at_terminal():
    print([os.isatty(number) for number in range(3)], tuple(os.get_terminal_size()), flush=True)
    print("\x1b[31mred\x1b[0m\r10 %\r20 %\ttab", file=sys.stderr, flush=True)
    print("name?", flush=True)
    print("hello", input(), open("/dev/tty").isatty())


def waits_for_interrupt():
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def waits_for_order():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    print("ready", flush=True)
    while True:
        signal.pause()


def leaves_child_behind():
    subprocess.Popen(["sleep", "20"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    print("done")


def traces():
    calls = []

    def tracer(frame, event, _argument):
        calls.append((os.path.basename(frame.f_code.co_filename), frame.f_code.co_name, event))

    import colorsys

    sys.settrace(tracer)
    threading.settrace(tracer)
    colorsys.rgb_to_hls(0.1, 0.2, 0.3)
    thread = threading.Thread(target=len, args=("",))
    thread.start()
    thread.join()
    sys.settrace(None)
    for call in calls:
        print(*call)


def lists_modules():
    """Modules that a program does not import itself must not be there: a file of that name beside it counts."""
    print(sorted(name for name in sys.modules if not name.startswith(("steelyard", "_", "encodings"))))
    print(sys.excepthook is sys.__excepthook__, os._exit, sys.path)
    try:
        import sitecustomize

        print(sitecustomize.__file__)
    except ImportError as error:
        print(error)


def marks_steps():
    import steelyard

    for _ in range(STEPS):
        time.sleep(0.001)
        steelyard.mark_step()
    print(sys.version_info[:2])


# With torch.


def raises_in_training():
    train(middle=raises)


def raises_in_backward():
    import torch

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(_context, value):
            return value * 2

        @staticmethod
        def backward(_context, _gradient):
            raise RuntimeError("no gradient")

    train(middle=lambda: Broken.apply(torch.ones(1, requires_grad=True)).backward())


def raises_in_data():
    train(items=Items(8 * STEPS, broken=100))


def raises_in_worker():
    train(items=Items(8 * STEPS, broken=100), num_workers=1)


def raises_at_start():
    import torch

    torch.optim.SGD([], lr=0.1)


def raises_in_save():
    import torch

    train(middle=lambda: torch.save({}, "/no/such/folder/file.pt"))


def exits_in_training():
    train(middle=lambda: os._exit(5))


def is_killed_in_training():
    train(middle=lambda: os.kill(os.getpid(), signal.SIGKILL))


def device_out_of_memory():
    import torch

    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    train(middle=fail)


def forks_in_training():
    train(middle=forks)


def executes_itself_in_training():
    train(middle=executes_itself)


def workers_by_fork():
    train(num_workers=2)


def workers_by_spawn():
    train(num_workers=2, multiprocessing_context="spawn")


def closes_files_in_training():
    def close():
        os.closerange(3, 100)
        with open("own.bin", "wb") as file:
            kept.append(os.dup(file.fileno()))
            kept.append(os.dup(file.fileno()))

    kept = []
    train(middle=close)
    print(os.path.getsize("own.bin"))


def one_rank_hangs():
    import torch.distributed as dist

    dist.init_process_group("gloo")
    train(middle=threading.Event().wait if dist.get_rank() else dist.barrier)


def one_rank_fails():
    import torch.distributed as dist

    dist.init_process_group("gloo")
    train(middle=lambda: os._exit(6) if dist.get_rank() else dist.barrier())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
