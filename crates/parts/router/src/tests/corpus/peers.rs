//! The behaviour of real proxies in each case: it is played to the installed nginx and HAProxy, and
//! compared with what stands in the case's file. `CORTEX_RECORD_PEERS=1` writes that anew.

mod play;
mod records;
mod server;
mod verdict;

use std::cell::Cell;
use std::io::Write;
use std::time::Duration;

use futures_util::future::join_all;

use self::play::play;
use self::records::{
    Habits, add, differences, is_recorded, record, record_table, recorded_versions,
};
use self::server::{Kind, Server};
use self::verdict::{Verdict, judge};
use super::case::{Case, Folder};

const RECORD: &str = "CORTEX_RECORD_PEERS";
const HOW: &str = "CORTEX_RECORD_PEERS=1 cargo test -p cortex --lib real_peers";
/// Servers of each kind: a case waits more than it works.
const LANES: usize = 4;
/// Rounds in which each case is played to be recorded: a peer may do now this, now that.
const ROUNDS: usize = 10;
/// Rounds in which what differs is played again.
const REPLAYS: usize = 3;
/// The time for all of one case, on a machine that has other things to do.
const CASE_TIME_MAX: Duration = Duration::from_secs(150);

/// Plays all cases; a server that is free takes one that is nobody's yet.
async fn play_all(kind: Kind, cases: &[(Folder, Case)]) -> Vec<Verdict> {
    let next = Cell::new(0);
    let lanes = (0..LANES).map(async |_| {
        let server = Server::start(kind).await;
        let mut verdicts = Vec::new();
        while let Some((folder, case)) = cases.get(next.get()) {
            let index = next.replace(next.get() + 1);
            let played = play(&server, *folder, case, CASE_TIME_MAX).await;
            verdicts.push((index, judge(*folder, case, &played)));
        }
        verdicts
    });
    let mut verdicts = join_all(lanes).await.concat();
    verdicts.sort_by_key(|(index, _)| *index);
    verdicts.into_iter().map(|(_, verdict)| verdict).collect()
}

/// Returns what each peer does with each case.
async fn play_both(cases: &[(Folder, Case)]) -> Vec<[Verdict; 2]> {
    let (nginx, haproxy) =
        tokio::join!(play_all(Kind::Nginx, cases), play_all(Kind::Haproxy, cases));
    nginx.into_iter().zip(haproxy).map(|(one, other)| [one, other]).collect()
}

fn all() -> Vec<(Folder, Case)> {
    let of = |folder: Folder| folder.cases().into_iter().map(move |case| (folder, case));
    of(Folder::Requests).chain(of(Folder::Answers)).collect()
}

fn without_folders(cases: &[(Folder, Case)]) -> Vec<&Case> {
    cases.iter().map(|(_, case)| case).collect()
}

async fn record_all(cases: &[(Folder, Case)], versions: &[String; 2]) {
    let mut habits: Vec<Habits> = cases.iter().map(|_| Habits::default()).collect();
    for _ in 0..ROUNDS {
        for (habits, verdicts) in habits.iter_mut().zip(play_both(cases).await) {
            add(habits, &verdicts);
        }
    }
    for ((_, case), habits) in cases.iter().zip(&habits) {
        record(case, habits);
    }
    record_table(&without_folders(&all()), versions);
}

/// Plays the cases once more that are not as they are recorded.
async fn replay(cases: &[(Folder, Case)], verdicts: &mut [[Verdict; 2]]) {
    for (peer, kind) in Kind::ALL.into_iter().enumerate() {
        let server = Server::start(kind).await;
        for ((folder, case), verdicts) in cases.iter().zip(&mut *verdicts) {
            if !is_recorded(case, peer, &verdicts[peer]) {
                let played = play(&server, *folder, case, CASE_TIME_MAX).await;
                verdicts[peer] = judge(*folder, case, &played);
            }
        }
    }
}

#[tokio::test]
async fn real_peers_do_with_each_case_what_is_recorded() {
    let (cases, versions) = (all(), Kind::ALL.map(Kind::version));
    if std::env::var_os(RECORD).is_some() {
        record_all(&cases, &versions).await;
        return;
    }
    let mut verdicts = play_both(&cases).await;
    // A difference is seen again before it is believed: a starved machine delivers bytes late.
    for _ in 0..REPLAYS {
        if differences(&without_folders(&cases), &verdicts).is_empty() {
            return;
        }
        replay(&cases, &mut verdicts).await;
    }
    let (differing, recorded) =
        (differences(&without_folders(&cases), &verdicts), recorded_versions());
    if differing.is_empty() {
        return;
    }
    let text = format!(
        "{}{} of these differ from what is recorded.\nRecorded: {recorded:?}; installed: \
         {versions:?}. To record anew: {HOW}\n",
        differing.concat(),
        differing.len(),
    );
    assert!(versions != recorded, "{text}");
    // Another version may do other things; that is news, and no failure of the router.
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}
