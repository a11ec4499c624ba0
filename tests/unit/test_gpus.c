/* GPUs, found in trees that the test brings along, and which of them a worker sees. */
#include "cli/gpus.h"
#include "fake_tree.h"

static struct mu_gpus gpus;
static struct mu_gpu_seen seen[MU_GPUS_MAX];

/* "ADDRESS@NODE ...", "?" for an address that is not known; or the error. */
static const char *look(struct mu_gpus_variables variables)
{
    static char text[2048];
    struct muster_error error = { 0 };
    size_t count, len = 0;

    mu_gpus_list(tree, &gpus);
    if (mu_gpus_seen(&gpus, &variables, seen, &count, &error) < 0) {
        (void)snprintf(text, sizeof text, "error: %s", error.text);
        return text;
    }
    assert_int_equal(count, mu_gpus_count(&gpus, &variables));
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s@%d", i == 0 ? "" : " ",
                                seen[i].address == NULL ? "?" : seen[i].address, seen[i].node);
    return text;
}

#define LOOK(...) look((struct mu_gpus_variables){ __VA_ARGS__ })

/* Two nodes with two GPUs of one model each; the directory does not give them in order. */
static void put_four(void)
{
    put_nvidia("0000:9b:00.0", "0x2330\n", "1\n", "GPU-44440000-aaaa");
    put_nvidia("0000:1b:00.0", "0x2330\n", "0\n", "GPU-11110000-aaaa");
    put_nvidia("0000:86:00.0", "0x2330\n", "1\n", "GPU-33330000-aaaa");
    put_nvidia("0000:3f:00.0", "0x2330\n", "0\n", "GPU-22220000-aaaa");
}

static void a_machine_without_gpus_has_none(void **state)
{
    (void)state;
    assert_string_equal(LOOK(), "");
    assert_int_equal(gpus.vendor, MU_GPUS_NONE);
}

static void nvidia_s_are_ordered_by_address(void **state)
{
    (void)state;
    put_four();
    assert_string_equal(LOOK(), "0000:1b:00.0@0 0000:3f:00.0@0 0000:86:00.0@1 0000:9b:00.0@1");
    assert_int_equal(gpus.vendor, MU_GPUS_NVIDIA);
    put_nvidia("0001:01:00.0", "0x2330\n", "2\n", "GPU-5");
    put_nvidia("10000:01:00.0", "0x2330\n", "3\n", "GPU-6"); /* numbers, not letters, are compared */
    put_nvidia("0000:3f:01.0", "0x2330\n", "0\n", "GPU-7");
    put_nvidia("0000:3f:00.1", "0x2330\n", "0\n", "GPU-8");
    assert_string_equal(LOOK(), "0000:1b:00.0@0 0000:3f:00.0@0 0000:3f:00.1@0 0000:3f:01.0@0 0000:86:00.0@1 "
                                "0000:9b:00.0@1 0001:01:00.0@2 10000:01:00.0@3");
}

static void a_list_picks_by_number_or_name(void **state)
{
    (void)state;
    put_four();
    assert_string_equal(LOOK(.cuda = "3,0"), "0000:9b:00.0@1 0000:1b:00.0@0");
    assert_string_equal(LOOK(.cuda = "3,0", .hip = "1", .rocr = ""), "0000:9b:00.0@1 0000:1b:00.0@0");
    assert_string_equal(LOOK(.cuda = "GPU-33,GPU-11110000-aaaa"), "0000:86:00.0@1 0000:1b:00.0@0");
    assert_string_equal(LOOK(.cuda = "MIG-GPU-22220000-aaaa/1/0"), "0000:3f:00.0@0");
    assert_string_equal(LOOK(.cuda = ""), "");
    assert_string_equal(LOOK(.cuda = "2,9,1"), "0000:86:00.0@1");
}

static void a_name_that_the_driver_does_not_know_is_an_error(void **state)
{
    (void)state;
    put_four();
    assert_string_equal(LOOK(.cuda = "GPU-11,GPU-9"),
                        "error: which GPU is device 1 of 'GPU-11,GPU-9'? The driver's files do not say it");
    assert_string_equal(LOOK(.cuda = "GPU-"), /* several begin like that */
                        "error: which GPU is device 0 of 'GPU-'? The driver's files do not say it");
    assert_string_equal(LOOK(.cuda = "MIG-0a0b0c"),
                        "error: which GPU is device 0 of 'MIG-0a0b0c'? The driver's files do not say it");
}

static void gpus_that_nobody_has_used_have_no_names_yet(void **state)
{
    (void)state;
    put_nvidia("0000:01:00.0", "1", "0", "GPU-\?\?\?\?-\?\?");
    put_nvidia("0000:02:00.0", "1", "1", "GPU-\?\?\?\?-\?\?");
    assert_string_equal(LOOK(), "0000:01:00.0@0 0000:02:00.0@1");
    assert_string_equal(LOOK(.cuda = "GPU-\?"),
                        "error: which GPU is device 0 of 'GPU-\?'\? The driver's files do not say it");
}

/* CUDA puts the fastest first, unless it is told otherwise. */
static void several_models_need_an_order(void **state)
{
    (void)state;
    put_four();
    put_nvidia("0000:01:00.0", "0x1db6\n", "0\n", "GPU-0");
    assert_string_equal(LOOK(),
                        "error: which GPU is device 0? They are of several models, and CUDA puts the fastest first; "
                        "set CUDA_DEVICE_ORDER=PCI_BUS_ID");
    assert_string_equal(
        LOOK(.order = "FASTEST_FIRST", .cuda = "1"),
        "error: which GPU is device 0? They are of several models, and CUDA puts the fastest first; set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID");
    assert_string_equal(LOOK(.order = "PCI_BUS_ID", .cuda = "1,0"), "0000:1b:00.0@0 0000:01:00.0@0");
    assert_string_equal(LOOK(.cuda = "GPU-0,GPU-4"), "0000:01:00.0@0 0000:9b:00.0@1");
}

static void on_one_node_it_does_not_matter_which_is_which(void **state)
{
    (void)state;
    put_nvidia("0000:01:00.0", "0x1db6\n", "1\n", "GPU-0");
    put_nvidia("0000:02:00.0", "0x2330\n", "1\n", "GPU-1");
    assert_string_equal(LOOK(), "?@1 ?@1");
    assert_string_equal(LOOK(.cuda = "MIG-a,MIG-b,MIG-c"), "?@1 ?@1 ?@1");
}

static void the_firmware_or_the_kernel_may_not_say_the_node(void **state)
{
    (void)state;
    put_nvidia("0000:01:00.0", "1", "-1\n", "GPU-0");
    assert_string_equal(LOOK(), "0000:01:00.0@-1");
    put("/proc/driver/nvidia/gpus/0000:02:00.0", NULL);
    put("/sys/bus/pci/devices/0000:02:00.0/device", "1");
    put("/proc/driver/nvidia/gpus/strange", NULL);
    assert_string_equal(LOOK(.cuda = "1,2", .order = "PCI_BUS_ID"), "0000:01:00.0@-1 0000:02:00.0@-2");
    put("/sys/bus/pci/devices/0000:02:00.0/numa_node", "4294967296\n"); /* nonsense, not node 0 */
    assert_string_equal(LOOK(.cuda = "2", .order = "PCI_BUS_ID"), "0000:02:00.0@-2");
}

/* A container may have the devices without the driver's list. */
static void the_bus_helps_where_the_driver_s_list_is_hidden(void **state)
{
    (void)state;
    put("/dev/nvidia0", "");
    put("/dev/nvidia1", "");
    put("/dev/nvidiactl", "");
    assert_string_equal(LOOK(),
                        "error: which GPU is device 0? The driver offers 2 and the PCI bus has 0, but there is no "
                        "/proc/driver/nvidia/gpus to say which belong together");
    for (unsigned i = 1; i < 3; i++) {
        put_at("0x10de\n", "/sys/bus/pci/devices/0000:0%u:00.0/vendor", i);
        put_at("0x030200\n", "/sys/bus/pci/devices/0000:0%u:00.0/class", i);
        put_at("0x2330\n", "/sys/bus/pci/devices/0000:0%u:00.0/device", i);
        put_at(i == 1 ? "0\n" : "1\n", "/sys/bus/pci/devices/0000:0%u:00.0/numa_node", i);
        put_at("0x10de\n", "/sys/bus/pci/devices/0000:0%u:00.1/vendor", i);
        put_at("0x040300\n", "/sys/bus/pci/devices/0000:0%u:00.1/class", i); /* their sound */
        put_at("0x1000\n", "/sys/bus/pci/devices/0000:0%u:01.0/vendor", i);
        put_at("0x030000\n", "/sys/bus/pci/devices/0000:0%u:01.0/class", i); /* somebody else's */
    }
    assert_string_equal(LOOK(), "0000:01:00.0@0 0000:02:00.0@1");
    put("/dev/nvidia2", "");
    assert_string_equal(LOOK(),
                        "error: which GPU is device 0? The driver offers 3 and the PCI bus has 2, but there is no "
                        "/proc/driver/nvidia/gpus to say which belong together");
}

static void amd_s_are_ordered_by_the_driver_s_numbers(void **state)
{
    (void)state;
    put("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 16\nsimd_count 0\n");
    put_amd(10, 0x11, "1\n", "10");
    put_amd(9, 0x31, "0\n", "9");
    put_amd(2, 0x51, "0\n", "43981");
    assert_string_equal(LOOK(), "0000:51:00.0@0 0000:31:00.0@0 0000:11:00.0@1");
    assert_int_equal(gpus.vendor, MU_GPUS_AMD);
    assert_string_equal(LOOK(.cuda = "2"), "0000:11:00.0@1");
    assert_string_equal(LOOK(.cuda = "2", .hip = "1,0"), "0000:31:00.0@0 0000:51:00.0@0");
    assert_string_equal(LOOK(.rocr = "2,0", .hip = "1,0"), "0000:51:00.0@0 0000:11:00.0@1");
    assert_string_equal(LOOK(.rocr = "GPU-000000000000abcd"), "0000:51:00.0@0");
    assert_string_equal(LOOK(.rocr = "", .hip = "1,0"), "");
    assert_string_equal(LOOK(.rocr = "GPU-7"),
                        "error: which GPU is device 0 of 'GPU-7'? The driver's files do not say it");
}

/* The driver lists each, and has its number where the function of a PCI device would be. */
static void partitions_of_one_gpu_are_where_it_is(void **state)
{
    (void)state;
    put_amd(1, 0x11, "1\n", "1");
    put_amd(4, 0x21, "0\n", "4");
    for (unsigned i = 1; i < 3; i++) {
        char text[64];

        (void)snprintf(text, sizeof text, "simd_count 152\nlocation_id %u\ndomain 0\n", (0x11u << 8) + i);
        put_at(text, "/sys/class/kfd/kfd/topology/nodes/%u/properties", 1 + i);
    }
    assert_string_equal(LOOK(), "0000:11:00.0@1 0000:11:00.0@1 0000:11:00.0@1 0000:21:00.0@0");
}

static void a_list_without_end_is_cut(void **state)
{
    (void)state;
    for (unsigned i = 0; i < MU_GPUS_MAX + 10; i++)
        put_at(NULL, "/proc/driver/nvidia/gpus/%04x:01:00.0", i);
    mu_gpus_list(tree, &gpus);
    assert_int_equal(gpus.count, MU_GPUS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(a_machine_without_gpus_has_none),
        TREE_TEST(nvidia_s_are_ordered_by_address),
        TREE_TEST(a_list_picks_by_number_or_name),
        TREE_TEST(a_name_that_the_driver_does_not_know_is_an_error),
        TREE_TEST(gpus_that_nobody_has_used_have_no_names_yet),
        TREE_TEST(several_models_need_an_order),
        TREE_TEST(on_one_node_it_does_not_matter_which_is_which),
        TREE_TEST(the_firmware_or_the_kernel_may_not_say_the_node),
        TREE_TEST(the_bus_helps_where_the_driver_s_list_is_hidden),
        TREE_TEST(amd_s_are_ordered_by_the_driver_s_numbers),
        TREE_TEST(partitions_of_one_gpu_are_where_it_is),
        TREE_TEST(a_list_without_end_is_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
