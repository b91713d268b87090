//! Programs that are held behind a wall.

use std::fs;

use agent::launcher::Launcher;
use shim::sandbox::Sandbox;
use shim::spec::LaunchSpec;

use super::{LONG, ShimFixture, exit_of, until};

#[tokio::test]
async fn a_program_behind_a_wall_is_told_as_it_ended() {
    let place = ShimFixture::new();
    let walled = |script: &str| LaunchSpec {
        sandbox: Some(Sandbox {
            writable: vec![place.root.path().to_owned()],
            temporary: place.root.path().to_owned(),
            ..Sandbox::default()
        }),
        ..place.shell(script)
    };
    for (script, how) in [
        ("echo said; exit 3", "exit status 3"),
        ("echo said; exit 137", "exit status 137"),
        (
            "echo said; kill -9 $$",
            "killed by signal 9 (SIGKILL), not by Cortex: out of memory, or by hand",
        ),
        ("echo said; sleep 1000 & exit 0", "exit status 0"),
    ] {
        let held = place.launcher().launch(walled(script)).await.unwrap();
        let exit = exit_of(&*held).await;
        assert_eq!((exit.how.as_str(), exit.last_words.as_str()), (how, "said"), "{script}");
        held.forget().await.unwrap();
        until("everything to be gone", || place.marked().is_empty()).await;
    }
    // SIGTERM reaches the program, which ends in its own way.
    let script = "trap 'echo asked; exit 4' TERM; echo ready; while :; do sleep 0.02; done";
    let held = place.launcher().launch(walled(script)).await.unwrap();
    until("it to run", || fs::read_to_string(place.log()).unwrap().ends_with("ready\n")).await;
    held.stop(LONG).await.unwrap();
    let exit = exit_of(&*held).await;
    assert_eq!((exit.how.as_str(), exit.success), ("exit status 4", false));
    held.forget().await.unwrap();
    // What cannot be started says why, as without a wall.
    let spec = LaunchSpec { argv: vec!["no-such-program".into()], ..walled("") };
    let error = place.launcher().launch(spec).await.err().unwrap();
    assert!(format!("{error:#}").contains("no such program: 'no-such-program'"), "{error:#}");
}
