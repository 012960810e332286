//! A program on a terminal of its own, as a user types into it.

use super::Home;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long some output is waited for before the test fails.
const WAIT: Duration = Duration::from_secs(60);

/// A terminal with a program on it.
pub(super) struct Pty {
    control: File,
    child: Child,
    shown: Arc<(Mutex<Shown>, Condvar)>,
    /// How much of the output was looked at.
    seen: usize,
}

#[derive(Default)]
struct Shown {
    text: String,
    is_closed: bool,
}

impl Pty {
    /// Starts a program in the working directory of a home, with the terminal as its own, so that Ctrl-C reaches it.
    pub(super) fn start(home: &Home, variables: &[(&str, &str)], program: &[&str]) -> Self {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&control).unwrap();
        unlockpt(&control).unwrap();
        let name = ptsname(&control, Vec::new()).unwrap().into_string().unwrap();
        let line = || File::options().read(true).write(true).open(&name).unwrap();
        let size = rustix::termios::Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(line(), size).unwrap();
        let binaries = super::binary().parent().unwrap().display();
        let path = format!("{binaries}:{}", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(program).current_dir(home.work()).env_clear();
        command.env("PATH", path).env("TERM", "xterm").env("LC_ALL", "C.UTF-8").env("HOME", home.work().join(".."));
        command.env("TREEHOLD_DATA", home.data()).env("TREEHOLD_PAGER", "").env("TREEHOLD_COMPLETE_WAIT", "60s");
        command.envs(variables.iter().copied());
        command.stdin(Stdio::from(line())).stdout(Stdio::from(line())).stderr(Stdio::from(line()));
        let child = command.spawn().unwrap();
        drop(command);
        let control = File::from(control);
        let shown = Arc::new((Mutex::<Shown>::default(), Condvar::new()));
        let (mut reader, shared) = (control.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // Reading fails once the other side of the terminal is closed.
            while let Ok(read @ 1..) = reader.read(&mut part) {
                shared.0.lock().unwrap().text.push_str(&String::from_utf8_lossy(&part[..read]));
                shared.1.notify_all();
            }
            shared.0.lock().unwrap().is_closed = true;
            shared.1.notify_all();
        });
        Self { control, child, shown, seen: 0 }
    }

    /// Types some text.
    pub(super) fn send(&mut self, text: &str) {
        self.control.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until new output contains a text. Returns the output up to it.
    pub(super) fn until(&mut self, expected: &str) -> String {
        let (lock, changed) = &*self.shown;
        let seen = self.seen;
        let is_missing = |shown: &mut Shown| !shown.text[seen..].contains(expected) && !shown.is_closed;
        let (shown, _) = changed.wait_timeout_while(lock.lock().unwrap(), WAIT, is_missing).unwrap();
        let new = &shown.text[seen..];
        let Some(at) = new.find(expected) else { panic!("no {expected:?} in {new:?}, closed: {}", shown.is_closed) };
        self.seen += at + expected.len();
        new[..at].to_owned()
    }

    /// Waits until the program ends.
    pub(super) fn ended(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}
