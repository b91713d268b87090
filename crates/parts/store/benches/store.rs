//! Benchmarks of the store: durable writes per second with 1, 10 and 100 concurrent writers, and
//! the memory that a million keys take. `cargo bench -p cortex --bench store [-- --keys N]` runs
//! them; the disk is the one that holds `TMPDIR`.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use model::Prefix;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use store::SharedStore;
use store::open::open_alone;
use store::options::Options;

const RUN: Duration = Duration::from_secs(3);
const WRITERS: [usize; 3] = [1, 10, 100];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, option, keys, directory, ..] = &arguments[..]
        && option == "--open"
    {
        return open_again(keys.parse()?, Path::new(directory));
    }
    let keys = arguments.iter().position(|argument| argument == "--keys");
    let keys = keys.and_then(|at| arguments.get(at + 1)).map(|n| n.parse()).transpose()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let directory = tempfile::tempdir()?;
    let layout = DataDirectory::new(directory.path().join("data"), directory.path());
    let open = || {
        open_alone(&layout, "bench".parse()?, Clock::start(), Options::default())
            .map_err(anyhow::Error::from)
    };
    let store = open()?;
    match keys {
        None => {
            for writers in WRITERS {
                let rate = runtime.block_on(writes_per_second(&store, writers));
                println!("{writers:>4} writers: {rate:>8.0} durable writes/s");
            }
            runtime.block_on(store.close())?;
        }
        Some(keys) => {
            let before = resident_kib("VmRSS:")?;
            runtime.block_on(fill(&store, keys));
            print_memory("after writing", keys, before, resident_kib("VmRSS:")?);
            runtime.block_on(store.close())?;
            // A process of its own, so that none of this one's memory is counted.
            let again = std::process::Command::new(std::env::current_exe()?)
                .args(["--open", &keys.to_string()])
                .arg(directory.path())
                .status()?;
            anyhow::ensure!(again.success(), "opening again failed");
        }
    }
    Ok(())
}

fn open_again(keys: u64, directory: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let layout = DataDirectory::new(directory.join("data"), directory);
    let before = resident_kib("VmRSS:")?;
    let start = Instant::now();
    let store = open_alone(&layout, "bench".parse()?, Clock::start(), Options::default())?;
    println!("opened in {:.2} s", start.elapsed().as_secs_f64());
    print_memory("after opening", keys, before, resident_kib("VmRSS:")?);
    print_memory("at its highest, while opening", keys, before, resident_kib("VmHWM:")?);
    let start = Instant::now();
    let found = runtime.block_on(store.keys(&Prefix::all()))?.len();
    println!("listed {found} keys in {:.2} s", start.elapsed().as_secs_f64());
    runtime.block_on(store.close())?;
    Ok(())
}

/// Prints the memory per key without the key's own text, whose length the caller chose.
fn print_memory(when: &str, keys: u64, before_kib: u64, after_kib: u64) {
    let each = (after_kib - before_kib) * 1024 / keys;
    let key = key(0).len() as u64;
    println!("{} bytes of memory per key beyond its text, {when}", each - key);
}

fn key(n: u64) -> String {
    format!("app::{:04}::k{n:07}", n % 1000)
}

async fn write(store: &SharedStore, key: String) {
    let value = Bytes::from_static(&[b'v'; 100]);
    let key = key.parse().expect("a well-formed key");
    store.set(key, value).await.expect("the disk has room");
}

async fn writes_per_second(store: &SharedStore, writers: usize) -> f64 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut written = 0u64;
                while start.elapsed() < RUN {
                    write(&store, format!("bench::{writer}::{}", written % 100)).await;
                    written += 1;
                }
                written
            })
        })
        .collect();
    let mut total = 0;
    for task in tasks {
        total += task.await.expect("writers do not panic");
    }
    total as f64 / start.elapsed().as_secs_f64()
}

async fn fill(store: &SharedStore, keys: u64) {
    const TASKS: u64 = 500;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in (task..keys).step_by(TASKS as usize) {
                    write(&store, key(n)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("writers do not panic");
    }
}

fn resident_kib(field: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(field));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(word.ok_or_else(|| anyhow::anyhow!("no {field}"))?.parse()?)
}
