//! Scratch.
use std::panic::{AssertUnwindSafe, catch_unwind};
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    std::panic::set_hook(Box::new(|_| {}));
    let threads = 2;
    if let Some(m) = args.get(2) {
        println!("mutant {m}");
    }
    std::thread::scope(|s| {
        for t in 0..threads {
            let args = &args;
            s.spawn(move || {
                #[cfg(feature = "mutants")]
                if let Some(m) = args.get(2) {
                    store::mutants::activate(*m as u8);
                }
                for seed in (args[0] + t..args[1]).step_by(threads as usize) {
                    let begun = std::time::Instant::now();
                    let mut world = sim::cluster::world::World::new(seed);
                    let r =
                        catch_unwind(AssertUnwindSafe(|| sim::cluster::operator::live(&mut world)));
                    let ms = begun.elapsed().as_millis();
                    if ms > 400 {
                        println!("SLOW {seed} {ms} ms");
                    }
                    if let Err(p) = r {
                        let t = p
                            .downcast_ref::<String>()
                            .cloned()
                            .or(p.downcast_ref::<&str>().map(|t| t.to_string()))
                            .unwrap_or_default();
                        println!(
                            "{seed}: {} [{ms} ms, {:.1} s]",
                            t.chars().take(260).collect::<String>().replace('\n', " "),
                            (world.now as f64 - 1.7e12) / 1000.0
                        );
                    }
                }
            });
        }
    });
}
