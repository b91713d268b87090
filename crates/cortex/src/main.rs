//! The binary. Dispatches, and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before any thread, runtime or log: a shim is a small process.
    if let Some(code) = shim::dispatch() {
        return code;
    }
    cli::main()
}
