//! Scenario files: commands, one per line, then a line of dashes and what is expected to happen.

use model::application::RolloutMode;
use model::{ApplicationName, Timestamp};

use crate::fault::Weather;
use crate::process::Quality;
use crate::users::Push;
use crate::world::World;

pub const SEPARATOR: &str = "----";

/// Runs the commands in still weather and returns what happened.
pub fn run(commands: &str) -> Result<String, String> {
    let mut world = World::new(0, Weather::Still);
    world.tracing = true;
    let name: ApplicationName = "shop".parse().map_err(|error| format!("{error}"))?;
    for line in commands.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') {
            command(&mut world, &name, line).ok_or(format!("'{line}' is no command"))?;
        }
    }
    Ok(world.trace.join("\n") + "\n")
}

fn command(world: &mut World, name: &ApplicationName, line: &str) -> Option<()> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["push", quality, ref rest @ ..] => {
            let mut push = Push {
                quality: Quality::named(quality)?,
                rollout: RolloutMode::StartFirst,
                web: 1,
                worker: 0,
                same_build: false,
            };
            for word in rest {
                match word.split_once('=') {
                    Some(("web", count)) => push.web = count.parse().ok()?,
                    Some(("worker", count)) => push.worker = count.parse().ok()?,
                    None if *word == "same-build" => push.same_build = true,
                    None if *word == "stop-first" => push.rollout = RolloutMode::StopFirst,
                    _ => return None,
                }
            }
            world.push(name, &push);
        }
        ["wait", seconds] => {
            let seconds: f64 = seconds.parse().ok()?;
            let wait = std::time::Duration::try_from_secs_f64(seconds).ok()?;
            let Timestamp(end) = Timestamp(world.now).after(wait);
            world.run_until(end);
        }
        ["scale", counts] => {
            let (process, count) = counts.split_once('=')?;
            world.scale(name, process, count.parse().ok()?);
        }
        ["restart"] => world.restart(name),
        ["destroy"] => world.destroy(name),
        ["kill", label] => world.kill(name, Some(label)),
        ["crash-loop", seconds] => {
            let seconds: u64 = seconds.parse().ok()?;
            world.crash_loop(name, seconds * 1_000);
        }
        ["node-crash", seconds] => {
            let seconds: u64 = seconds.parse().ok()?;
            world.node_crash(seconds * 1_000);
        }
        _ => return None,
    }
    Some(())
}
