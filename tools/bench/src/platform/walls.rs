//! What a wall adds to the start of a process: one-off commands that do nothing, in an application
//! with a wall and in the same one without, by turns. Their way is that of instances: a shim is
//! started, and within the wall the program.

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::{EXAMPLE, node::BenchNode};
use crate::median;

/// The commands that are started in each application; each takes some tens of milliseconds.
const STARTS: usize = 41;

/// Returns the median times of a start without a wall and behind one, in milliseconds.
pub fn starts_ms(node: &BenchNode, directory: &Path) -> anyhow::Result<(f64, f64)> {
    let applications = ["none", "standard"];
    for isolation in applications {
        let source = directory.join(isolation);
        fs::create_dir(&source)?;
        fs::write(source.join("app.py"), EXAMPLE)?;
        fs::write(source.join("cortex.toml"), format!("isolation = \"{isolation}\"\n"))?;
        node.push(&source, isolation)?;
    }
    let mut times = [Vec::new(), Vec::new()];
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
    let [plain, walled] = times.map(median);
    Ok((plain, walled))
}
