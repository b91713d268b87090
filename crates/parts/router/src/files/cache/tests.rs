//! What is kept in memory, and for how long.

use super::*;

fn found() -> Arc<Found> {
    Arc::new(Found::missing())
}

#[test]
fn what_nobody_asks_for_is_forgotten() {
    let mut cache = Cache::default();
    cache.put("a".into(), found());
    let file = Arc::new(tempfile::tempfile().unwrap());
    let large = Found { content: Content::Large(file.clone()), ..Found::missing() };
    cache.put("b".into(), Arc::new(large));
    assert_eq!((cache.files.len(), Arc::strong_count(&file)), (2, 2));
    cache.files.values_mut().for_each(|one| one.read_at -= UNUSED_TIME_MAX);
    cache.put("c".into(), found());
    cache.sweep();
    assert_eq!((cache.files.len(), cache.bytes, Arc::strong_count(&file)), (1, 257, 1));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_asks_for_is_forgotten_without_another_request() {
    let directory = tempfile::tempdir().unwrap();
    let build = directory.path().to_path_buf();
    let roots = Roots { build: build.clone(), persist: build.clone() };
    let files = Arc::new(Files::new(Handle::current()));
    files.open(build.join("index.html"), &roots).await.unwrap();
    let known = || {
        let cache = files.lock();
        (cache.files.len(), cache.swept)
    };
    tokio::time::sleep(2 * SWEEP_INTERVAL).await;
    assert_eq!(known(), (1, true));
    files.lock().files.values_mut().for_each(|one| one.read_at -= UNUSED_TIME_MAX);
    tokio::time::sleep(2 * SWEEP_INTERVAL).await;
    assert_eq!(known(), (0, false));
}

#[test]
fn descriptors_are_few() {
    let mut cache = Cache::default();
    let file = Arc::new(tempfile::tempfile().unwrap());
    for number in 0..1000 {
        let content = Content::Large(file.clone());
        let path = PathBuf::from(format!("{number}"));
        cache.put(path, Arc::new(Found { content, ..Found::missing() }));
    }
    assert!((200..=256).contains(&(Arc::strong_count(&file) - 1)), "{}", cache.files.len());
}

#[test]
fn one_reads_again_while_others_get_what_was_there() {
    let mut cache = Cache::default();
    assert!(cache.get("a".as_ref()).is_none());
    cache.put("a".into(), found());
    assert!(cache.get("a".as_ref()).is_some());
    let age = |cache: &mut Cache, age| {
        cache.files.values_mut().for_each(|one| one.read_at -= age);
    };
    age(&mut cache, CACHE_TIME_MAX);
    assert!(cache.get("a".as_ref()).is_none(), "the first one reads");
    assert!(cache.get("a".as_ref()).is_some(), "the others do not");
    age(&mut cache, STALE_TIME_MAX);
    assert!(cache.get("a".as_ref()).is_none(), "but not for long");
    cache.put("a".into(), found());
    assert!(cache.get("a".as_ref()).is_some());
    assert_eq!(cache.bytes, 257);
}
