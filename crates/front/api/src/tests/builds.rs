//! Tests of which releases share a build.

use super::*;

/// Returns a project that is built, with the variable `TITLE` as a part of its build.
fn front_end(text: &str) -> Vec<(&'static str, String)> {
    let toml = "build = ['make']\nbaked = ['TITLE']\n[processes]\nweb = 'run'\n";
    vec![("cortex.toml", toml.into()), ("page", text.into())]
}

#[tokio::test]
async fn releases_share_a_build_where_nothing_that_is_built_has_changed() {
    let api = Fixture::start().await;
    let push = async |text: &str, rebuild: bool| {
        let files = front_end(text);
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, &**text)).collect();
        let path = format!("/v1/apps/shop/releases?rebuild={rebuild}");
        api.push_archive(&path, archive(&files)).await.unwrap()
    };
    let set = async |name: &str, value: &str| {
        let change = json!({ name: value });
        let made: Configured = api.client.post("/v1/apps/shop/config", &change).await.unwrap();
        made.released.unwrap()
    };
    let builds = async || -> Vec<String> {
        let rows: Vec<ReleaseRow> = api.client.get("/v1/apps/shop/releases").await.unwrap();
        rows.into_iter().rev().map(|row| row.build).collect()
    };
    let done = async || api.conclude("shop", RolloutPhase::Done, None).await;
    push("one", false).await;
    done().await;
    let secret = set("PASSWORD", "x").await;
    done().await;
    assert_eq!(secret.notes, [""; 0]);
    let title = set("TITLE", "new").await;
    done().await;
    assert_eq!(title.notes, ["TITLE is part of what is built: it is built again"]);
    let same = push("one", false).await;
    done().await;
    assert!(same.notes.iter().any(|note| note.contains("the build of v3 is used")), "{same:?}");
    push("one", true).await;
    done().await;
    push("two", false).await;
    api.conclude("shop", RolloutPhase::Failed, Some("no network")).await;
    push("two", false).await;
    done().await;
    let back: Released =
        api.client.post("/v1/apps/shop/rollback", &json!({"to": "v2"})).await.unwrap();
    assert_eq!(back.release, "v8");
    let seen = builds().await;
    let new: Vec<bool> =
        seen.iter().enumerate().map(|(at, build)| !seen[..at].contains(build)).collect();
    assert_eq!(new, [true, false, true, false, true, true, true, false], "{seen:?}");
    assert_eq!((&seen[3], &seen[7]), (&seen[2], &seen[0]));
}
