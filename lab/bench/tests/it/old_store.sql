-- A store of schema 2, as builds before JSON lines made it: for `convert.rs`.
CREATE TABLE runs (
    run_id       INTEGER PRIMARY KEY,
    run_key      TEXT NOT NULL UNIQUE,
    started_at   INTEGER NOT NULL,
    host         TEXT NOT NULL,
    device       TEXT NOT NULL,
    device_name  TEXT NOT NULL,
    device_uuid  TEXT NOT NULL,
    driver       TEXT NOT NULL,
    architecture TEXT NOT NULL,
    units        INTEGER NOT NULL,
    l2_bytes     INTEGER NOT NULL,
    revision     TEXT NOT NULL,
    version      TEXT NOT NULL,
    protocol     INTEGER NOT NULL,
    options      TEXT NOT NULL,
    floor_us     REAL
);
CREATE TABLE measurements (
    measurement_id INTEGER PRIMARY KEY,
    run_id         INTEGER NOT NULL REFERENCES runs,
    case_name      TEXT NOT NULL,
    problem        TEXT NOT NULL,
    problem_json   TEXT NOT NULL,
    flops          REAL NOT NULL,
    bytes          REAL NOT NULL,
    mode           TEXT NOT NULL,
    baseline       INTEGER NOT NULL,
    stop           TEXT,
    rounds         INTEGER NOT NULL DEFAULT 0,
    turns          TEXT
);
CREATE INDEX measurements_of_run ON measurements (run_id);
CREATE TABLE subjects (
    subject_id     INTEGER PRIMARY KEY,
    measurement_id INTEGER NOT NULL REFERENCES measurements,
    position       INTEGER NOT NULL,
    label          TEXT NOT NULL,
    kernel         TEXT,
    module         TEXT,
    info           TEXT NOT NULL,
    inspection     TEXT,
    settled        INTEGER NOT NULL DEFAULT 0,
    trouble        TEXT,
    UNIQUE (measurement_id, position)
);
CREATE TABLE samples (
    sample_id  INTEGER PRIMARY KEY,
    subject_id INTEGER NOT NULL REFERENCES subjects,
    round      INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    runs       INTEGER NOT NULL,
    total_us   REAL NOT NULL,
    at_us      REAL NOT NULL
);
CREATE INDEX samples_of_subject ON samples (subject_id);
CREATE TABLE readings (
    reading_id     INTEGER PRIMARY KEY,
    measurement_id INTEGER NOT NULL REFERENCES measurements,
    round          INTEGER NOT NULL,
    sm_mhz         INTEGER,
    memory_mhz     INTEGER,
    power_w        REAL,
    power_limit_w  REAL,
    temperature_c  INTEGER,
    throttle       TEXT NOT NULL
);
CREATE INDEX readings_of_measurement ON readings (measurement_id);
PRAGMA application_id = 1179403077;
PRAGMA user_version = 2;
INSERT INTO runs VALUES (1, 'a1-1', 1795000000, 'box', 'cuda:0', 'NVIDIA H200', 'GPU-1', '580.1/13000', 'sm_90', 132, 62914560, '4c6384e2a5a9', '0.1.0', 2,
    '{"confidence":0.99,"threshold":0.02,"precision":0.005,"min_rounds":10,"max_rounds":200,"budget_ms":100.0,"sample_us":500.0,"lead_us":1000.0,"steady_from_us":null,"steady_lead_us":80000.0,"steady_sample_us":40000.0,"warm_up_min_us":20000.0,"warm_up_max_us":1000000.0,"cold_runs":1,"sustained_us":500000.0,"sustained_lead_us":250000.0,"sustained_rounds":8,"seed":1}', 0.75);
INSERT INTO runs VALUES (2, 'a2-1', 1795000100, 'box', 'cuda:0', 'NVIDIA H200', 'GPU-1', '580.1/13000', 'sm_90', 132, 62914560, '4c6384e2a5a9', '0.1.0', 2,
    '{"confidence":0.99,"threshold":0.02,"precision":0.005,"min_rounds":10,"max_rounds":200,"budget_ms":100.0,"sample_us":500.0,"lead_us":1000.0,"steady_from_us":null,"steady_lead_us":80000.0,"steady_sample_us":40000.0,"warm_up_min_us":20000.0,"warm_up_max_us":1000000.0,"cold_runs":1,"sustained_us":500000.0,"sustained_lead_us":250000.0,"sustained_rounds":8,"seed":1}', NULL);
INSERT INTO measurements VALUES (1, 1, 'mission', 'B1', '{"batch":1,"num_heads":8,"num_kv_heads":8,"seq_len_q":512,"seq_len_kv":512,"head_dim":64,"head_dim_v":64,"dtype":"f16","mask":{"window_left":null,"window_right":null,"align":"bottom_right"},"q_offset":0,"kv_offset":0,"softmax_scale":0.125,"softcap":null,"return_lse":false,"q":{"shape":[1,512,8,64],"strides":[262144,512,64,1]},"k":{"shape":[1,512,8,64],"strides":[262144,512,64,1]},"v":{"shape":[1,512,8,64],"strides":[262144,512,64,1]},"o":{"shape":[1,512,8,64],"strides":[262144,512,64,1]},"var_len":null,"paged_kv":null}',
    1.0, 1.0, 'hot', 0, 'narrow', 2, 'steady');
INSERT INTO measurements VALUES (2, 2, 'mission', 'B1', '{"batch":1,"num_heads":8,"num_kv_heads":8,"seq_len_q":512,"seq_len_kv":512,"head_dim":64,"head_dim_v":64,"dtype":"f16","mask":{"window_left":null,"window_right":null,"align":"bottom_right"},"q_offset":0,"kv_offset":0,"softmax_scale":0.125,"softcap":null,"return_lse":false,"q":{"shape":[1,512,8,64],"strides":[262144,512,64,1]},"k":{"shape":[1,512,8,64],"strides":[262144,512,64,1]},"v":{"shape":[1,512,8,64],"strides":[262144,512,64,1]},"o":{"shape":[1,512,8,64],"strides":[262144,512,64,1]},"var_len":null,"paged_kv":null}',
    1.0, 1.0, 'hot', 0, NULL, 0, NULL);
INSERT INTO subjects VALUES (1, 1, 0, 'torch/flash', NULL, NULL, '{"label":"torch/flash","kernel":null,"module":null,"launch":{"kind":"graph","runs":8},"options":"","attributes":null,"versions":{"torch":"2.9"}}', NULL, 1, NULL);
INSERT INTO subjects VALUES (2, 1, 1, 'mma/m32n128-w4-s2', 'mma/m32n128-w4-s2', 'ab',
    '{"label":"mma/m32n128-w4-s2","kernel":"mma/m32n128-w4-s2","module":"ab","launch":{"kind":"graph","runs":8},"options":"","attributes":null,"versions":{}}',
    '{"rejected":null,"detail":"largest error 2.4e-4","max_abs":0.00024,"skipped":[]}', 1, NULL);
INSERT INTO subjects VALUES (3, 2, 0, 'torch/flash', NULL, NULL, '{"label":"torch/flash","kernel":null,"module":null,"launch":{"kind":"graph","runs":8},"options":"","attributes":null,"versions":{"torch":"2.9"}}', NULL, 0, NULL);
INSERT INTO samples VALUES (1, 1, 0, 0, 8, 80.0, 100.0), (2, 2, 0, 1, 8, 40.0, 200.0), (3, 2, 1, 0, 8, 42.0, 300.0),
    (4, 1, 1, 1, 8, 84.0, 400.0), (5, 3, 0, 0, 8, 80.0, 100.0);
INSERT INTO readings VALUES (1, 1, 0, 1980, 3201, 180.5, 700.0, 40, 'SW_POWER_CAP SYNC_BOOST');
