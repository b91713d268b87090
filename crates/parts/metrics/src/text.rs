//! The text format of Prometheus: what stands before the values of a metric.

use std::fmt::{Result, Write};

/// Writes a metric's heading; `help` has neither a backslash nor an end of line.
pub fn heading(out: &mut String, name: &str, kind: &str, help: &str) -> Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}
