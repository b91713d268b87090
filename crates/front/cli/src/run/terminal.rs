//! The terminal that the command line was started in, while a command elsewhere has it.

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use session_core::frame::Size;

/// The size of a terminal that does not report one.
const SIZE_USUAL: Size = Size { rows: 24, columns: 80 };

pub fn size() -> Size {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            Size { rows: size.ws_row, columns: size.ws_col }
        }
        _ => SIZE_USUAL,
    }
}

/// A guard of the terminal's raw mode: while it lives, the terminal passes on every key and changes
/// nothing. The terminal is restored even if the command line panics.
pub struct Raw {
    before: Termios,
}

impl Raw {
    pub fn enter() -> rustix::io::Result<Raw> {
        let before = tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Raw { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // What was printed comes out first. A terminal that is gone needs nothing.
        tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.before).ok();
    }
}
