//! The binary: it dispatches, and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    // This comes before any thread, runtime or log: a shim is a small process.
    if let Some(code) = shim::dispatch() {
        return code;
    }
    cli::main()
}
