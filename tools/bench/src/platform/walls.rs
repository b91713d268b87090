//! What a wall adds to the start of a process: one-off commands that do nothing, in an application
//! without a wall and in the same one behind each kind of wall, by turns. Their way is that of
//! instances: a shim is started, and within the wall the program.

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::{EXAMPLE, node::BenchNode};
use crate::median;

/// The commands that are started in each application; each takes some tens of milliseconds.
const STARTS: usize = 41;

/// Median times of a start, in milliseconds.
pub struct Starts {
    pub plain_ms: f64,
    pub walled_ms: f64,
    /// The same with a network of its own.
    pub full_ms: f64,
}

/// Measures starts without a wall and behind one.
pub fn starts(node: &BenchNode, directory: &Path) -> anyhow::Result<Starts> {
    let applications = ["none", "standard", "full"];
    for isolation in applications {
        let source = directory.join(isolation);
        fs::create_dir(&source)?;
        fs::write(source.join("app.py"), EXAMPLE)?;
        fs::write(source.join("cortex.toml"), format!("isolation = \"{isolation}\"\n"))?;
        node.push(&source, isolation)?;
    }
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..STARTS {
        for (name, times) in applications.iter().zip(&mut times) {
            let start = Instant::now();
            node.run_nothing(name)?;
            times.push(start.elapsed().as_secs_f64() * 1_000.0);
        }
    }
    for name in applications {
        node.destroy(name)?;
    }
    let [plain_ms, walled_ms, full_ms] = times.map(median);
    Ok(Starts { plain_ms, walled_ms, full_ms })
}
